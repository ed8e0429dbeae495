//! The fencing token as a `bigint` of PostgreSQL: bound to a statement, and read from a row.

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use super::FencingToken;
use crate::Source;

impl ToSql for FencingToken {
    accepts!(INT8);
    to_sql_checked!();

    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Source> {
        i64::from(*self).to_sql(of, out)
    }
}

impl<'a> FromSql<'a> for FencingToken {
    accepts!(INT8);

    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, Source> {
        Ok(Self::try_from(i64::from_sql(of, raw)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_bigint_and_no_other_number_is_a_token() {
        let token = FencingToken::new(1 << 52).unwrap();
        let mut raw = BytesMut::new();
        token.to_sql_checked(&Type::INT8, &mut raw).unwrap();
        assert_eq!(raw, (1i64 << 52).to_be_bytes().as_slice());
        assert_eq!(FencingToken::from_sql(&Type::INT8, &raw).unwrap(), token);
        for number in [0, -1, 1 << 53, i64::MAX] {
            let error = FencingToken::from_sql(&Type::INT8, &number.to_be_bytes()).unwrap_err();
            assert!(error.to_string().contains(&format!("`{number}` is no fencing token")), "{error}");
        }
        // A narrower column would cut it off.
        for other in [Type::INT4, Type::TEXT, Type::NUMERIC] {
            assert!(token.to_sql_checked(&other, &mut raw).is_err(), "{other}");
        }
        assert!(Option::<FencingToken>::from_sql_null(&Type::INT8).unwrap().is_none());
    }
}
