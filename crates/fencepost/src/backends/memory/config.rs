//! What a `memory:` URL says.

use crate::Result;
use crate::backends::common::parameter::Parameter;
use crate::url::StoreUrl;

pub(super) const PARAMETERS: &[Parameter] = &[];

/// Which store: `memory:` is a new one each time, `memory:WORD` the same one for the same word.
pub(super) struct Config {
    pub(super) word: String,
}

impl Config {
    pub(super) fn from_url(url: StoreUrl) -> Result<Self> {
        let word = url.path.clone();
        url.finish()?;
        Ok(Self { word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_word_and_no_parameters() {
        let config = |url: &str| Config::from_url(StoreUrl::parse(url).unwrap());
        assert_eq!(config("memory:").unwrap().word, "");
        assert_eq!(config("memory:tests").unwrap().word, "tests");
        assert!(PARAMETERS.is_empty() && config("memory:?colour=red").is_err());
    }
}
