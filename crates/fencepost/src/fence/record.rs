//! What a resource remembers, and the one rule. Pure: the kinds that keep it in memory or in a file share it.

use super::StaleToken;
use crate::FencingToken;

/// Which tokens a resource accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// All but smaller ones than it has seen: a holder comes as often as it likes.
    AtLeast,
    /// Only larger ones than it has seen: a token has one effect.
    Above,
}

/// The largest token that was seen, and what was written last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record<T> {
    pub(super) highest: Option<FencingToken>,
    pub(super) value: T,
}

impl<T> Record<T> {
    /// Records a token, or refuses it.
    pub(super) fn admit(
        &mut self,
        resource: &str,
        token: FencingToken,
        rule: Rule,
    ) -> Result<(), StaleToken> {
        match self.highest {
            Some(highest) if token < highest || (token == highest && rule == Rule::Above) => {
                Err(StaleToken::new(resource, token, highest))
            }
            _ => {
                self.highest = Some(token);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn a_holder_comes_often_and_a_one_shot_token_once() {
        let mut record = Record::<()>::default();
        for (number, rule, accepted) in [
            (7, Rule::AtLeast, true),
            (7, Rule::AtLeast, true),
            (7, Rule::Above, false),
            (6, Rule::AtLeast, false),
            (9, Rule::Above, true),
            (9, Rule::Above, false),
            (8, Rule::Above, false),
            (9, Rule::AtLeast, true),
        ] {
            let before = record.clone();
            let said = record.admit("r", token(number), rule);
            assert_eq!(said.is_ok(), accepted, "{number} {rule:?}");
            if let Err(refusal) = said {
                assert_eq!(refusal, StaleToken::new("r", token(number), before.highest.unwrap()));
                assert_eq!(record, before, "a refusal changes nothing");
            }
        }
    }
}
