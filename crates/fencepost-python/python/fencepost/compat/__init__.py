"""The call shapes of other lock packages, so that a code base moves by changing an import.

`fencepost.compat.redis_lock` has `Lock` for `redis.lock.Lock` and `AsyncLock` for `redis.asyncio.lock.Lock`;
`fencepost.compat.redlock` has `Redlock` for `redlock.Redlock`. They use the keys of the other package, so old
and new processes exclude each other while you roll out.
"""
