//! The script without one of its protections. Each has to be found, or the checks prove little.

use crate::directed;
use crate::model::Verdict;
use crate::world::World;

type Check = fn(&str) -> Verdict;

/// What is taken out: the text, and what stands there instead.
const MUTANTS: &[(&str, &str, &str)] = &[
    ("equal tokens", "last >= now", "last > now"),
    ("a longer last token", "#last > #now or ", ""),
    ("a token with a channel", "if last and #last > 16 then last = string.match(last, '^%d+') end", ""),
    ("no zeros in the clock", "sub('00000' .. time[2], -6)", "time[2]"),
    ("no limit of tokens", "if tonumber(token) >= 2 ^ 53", "if false"),
    ("no limit of the clock", "#now == 16 and now >= '9007199254740992'", "false"),
    ("no limit of the digits of the clock", "#now > 16 or", ""),
    ("a fence for a minute", "now .. note, 'PX', '3600000'", "now .. note, 'PX', '60000'"),
    ("a fence that ends before its token", "token / 1000 + 3600000", "now / 1000 + 3600000"),
    ("no note of a push", "channel and ' ' .. channel or ''", "''"),
    ("free without a token", "or verb == 'free' and sub(value, -#suffix) ~= suffix then", "then"),
    ("free without an identity", "sub(value, 1, 36) ~= sub(who, 1, 36)", "false"),
    ("free after ask", "sub(holder, 1, 1) == '!' and string.match(holder, '^!([^\\n]*)')", "false"),
    ("leave stays in the queue", "redis.pcall('LREM', queue, '0', who)", "0"),
    ("leave removes one", "redis.pcall('LREM', queue, '0', who)", "redis.pcall('LREM', queue, '1', who)"),
    (
        "leave and a queue of another type",
        "redis.pcall('LREM', queue, '0', who)",
        "call('LREM', queue, '0', who)",
    ),
    ("free and a queue of another type", "redis.pcall('LPOP', queue)", "call('LPOP', queue)"),
    ("renew without a token", "sub(holder, -#suffix) == suffix and sub(holder, 1, 36)", "sub(holder, 1, 36)"),
    ("renew without an identity", "found ~= sub(mine, 1, 36) and", "false and"),
    ("attach once only", "and not (new and found == sub(new, 1, 36))", ""),
    ("attach writes nothing", "if new then call('SET', lock, new .. suffix, 'KEEPTTL') end", ""),
    ("attach forgets the term", "new .. suffix, 'KEEPTTL'", "new .. suffix"),
    (
        "renew shortens",
        "call('PEXPIRE', lock, left < tonumber(ttl) and ttl or left)\n    return 1",
        "call('PEXPIRE', lock, ttl)\n    return 1",
    ),
    (
        "renew writes only what is longer",
        "call('PEXPIRE', lock, left < tonumber(ttl) and ttl or left)\n    return 1",
        "if left < tonumber(ttl) then call('PEXPIRE', lock, ttl) end\n    return 1",
    ),
    (
        "again does not extend",
        "call('PEXPIRE', lock, left < tonumber(ttl) and ttl or left)\n    return sub",
        "return sub",
    ),
    (
        "again writes only what is longer",
        "call('PEXPIRE', lock, left < tonumber(ttl) and ttl or left)\n    return sub",
        "if left < tonumber(ttl) then call('PEXPIRE', lock, ttl) end\n    return sub",
    ),
    ("ask and seize whoever it is", "if holder ~= value then", "if not holder then"),
    ("tell a stranger", "if channel and #channel == 16 then", "if channel then"),
    ("ask does not mark", "call('SET', lock, asked, 'KEEPTTL')", ""),
    ("ask forgets the term", "call('SET', lock, asked, 'KEEPTTL')", "call('SET', lock, asked)"),
    ("ask twice", "string.match(value, '^!?([^\\n]*)')", "value"),
    ("seize tells nobody", "if told then redis.pcall('PUBLISH', told, message) end", ""),
    (
        "revoke tells first",
        "if verb == 'ask' then asked",
        "if told then redis.pcall('PUBLISH', told, message) told = nil end if verb == 'ask' then asked",
    ),
    ("seize for long", "who, head, ttl = entry, entry, '1000'", "who, head, ttl = entry, entry, '30000'"),
    (
        "nobody came earlier",
        "popped = call('LPOP', queue)\n    head = popped or who\n    local",
        "head = who\n    local",
    ),
    ("a stopped process", "if slow and slow ~= sub(who, 38, 53) then", "if false then"),
    ("a stopped process that asks", "if slow and slow ~= sub(who, 38, 53) then", "if slow then"),
    ("a stopped process at the head alone", "if sub(entry, 38, 53) == slow then", "if false then"),
    (
        "a stopped process and a fence of another type",
        "popped and redis.pcall('GET', fence)",
        "popped and call('GET', fence)",
    ),
    ("everybody is reached", "if not channel or reached[2] > 0 then", "if true then"),
    (
        "counted by the push",
        "redis.pcall('PUBSUB', 'NUMSUB', channel)",
        "{channel, call('PUBLISH', channel, 'granted ' .. sub(head, 1, 37) .. '1')}",
    ),
    ("no right to count", "channel and redis.pcall('PUBSUB'", "channel and call('PUBSUB'"),
    ("no right to publish", "redis.pcall('PUBLISH', channel", "call('PUBLISH', channel"),
    ("no right to tell", "redis.pcall('PUBLISH', told", "call('PUBLISH', told"),
    ("a fence of another type", "or redis.pcall('SET', fence", "or call('SET', fence"),
    ("a pushed grant for the whole term", "channel and '1000' or ttl)", "ttl)"),
    (
        "one dead waiter ends it",
        "popped = call('LPOP', queue)\n    head = popped or not giving and who",
        "head = nil",
    ),
    ("all dead, and the caller gets nothing", "head = popped or not giving and who", "head = popped"),
    ("refused, and out of the queue", "if popped then call('LPUSH', queue, popped)", "if false then"),
    (
        "back in the queue for ever",
        "call('LPUSH', queue, popped) call('PEXPIRE', queue, '60000')",
        "call('LPUSH', queue, popped)",
    ),
    ("refused, and not given back", "if giving then call('DEL', lock) end\n    return bad", "return bad"),
    ("given back, and kept", "if not head then call('DEL', lock) end", ""),
    ("after itself in the queue", " and not (holder and sub(holder, 2, #who + 1) == who)", ""),
    ("a dead head stays", "if reached and reached[2] == 0 then call('LPOP', queue) end", ""),
    ("a live head goes", "if reached and reached[2] == 0 then", "if reached then"),
    ("a look without the right to count", "first ~= who and redis.pcall(", "first ~= who and call("),
    ("twice in the queue", "or call('LPOS', queue, who)", "or false"),
    ("somebody else's place", "call('LINDEX', queue, stood) == who and stood", "stood"),
    ("a queue for ever", "- 1\n    call('PEXPIRE', queue, '60000')", "- 1"),
    ("one error for all", "pcall(step,", "true, step("),
];

/// How the checks find it, or `None`.
fn found(script: &str) -> Option<String> {
    let directed: [(&str, Check); 4] = [
        ("replica", directed::replica),
        ("full", directed::full),
        ("clock", directed::clock),
        ("stopped", directed::stopped),
    ];
    for seed in 1..4 {
        if let Err(error) = World::new(script, seed).run(1_500) {
            return Some(error);
        }
    }
    // A mutant may break a scenario in ways that it does not expect.
    let errors = directed.into_iter().map(|(name, check)| {
        let outcome = std::panic::catch_unwind(|| check(script));
        outcome.map_or_else(
            |_| Some(name.to_owned()),
            |verdict| verdict.err().map(|text| format!("{name}: {text}")),
        )
    });
    errors.flatten().next()
}

#[test]
fn every_protection_is_missed_if_it_is_taken_out() {
    let mut alive = Vec::new();
    for (name, from, to) in MUTANTS {
        assert_eq!(crate::SCRIPT.matches(from).count(), 1, "{name}: {from}");
        match found(&crate::SCRIPT.replace(from, to)) {
            Some(how) => eprintln!(
                "{name}: {}",
                how.chars().rev().take(150).collect::<Vec<_>>().iter().rev().collect::<String>()
            ),
            None => alive.push(name),
        }
    }
    assert!(alive.is_empty(), "nobody misses {alive:?}");
}
