//! The credential that a key is made of: the one that an authentication filter has checked, and in one way of writing it.
//!
//! A client that could write its credential in many ways, or hide it among others, would have as many limits. So a request is
//! refused whose `identity.key_headers` do not say one credential: several that differ, one header twice, or more in
//! a value than a scheme and a word. What is left in a client's choice is not part of the key:
//!
//! - the scheme, and what stands before the first letter of Base64url, which Envoy's `jwt_authn` passes over;
//! - the signature of a JWT. It can be written in several ways: the last character has bits that nobody reads, blanks
//!   and padding are skipped. Who signed it has signed what stands before.
//!
//! `jwt_authn` tries every place that it is told to look at, one after the other, so no reading of one header is the right
//! one where it looks at several: then the key is to be a claim (`claim_to_headers`), as it is for tokens that
//! are renewed.

use super::key::Asked;

/// Nobody can say which credential is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous;

/// The one credential in these headers; `None` when there is none.
pub(super) fn of<'a>(names: &[impl AsRef<str>], asked: &Asked<'a>) -> Result<Option<&'a str>, Ambiguous> {
    let mut found = None;
    for name in names.iter().map(AsRef::as_ref) {
        let Some(value) = (asked.header)(name) else { continue };
        if (asked.repeated)(name) {
            return Err(Ambiguous);
        }
        let credential = read(value)?;
        if found.is_some() && credential.is_some() && found != credential {
            return Err(Ambiguous);
        }
        found = found.or(credential);
    }
    Ok(found)
}

/// The credential in a header's value.
fn read(value: &str) -> Result<Option<&str>, Ambiguous> {
    let mut words = value.split_ascii_whitespace();
    match [words.next(), words.next(), words.next()] {
        [word, None, _] | [_, word, None] => Ok(word.map(signed)),
        _ => Err(Ambiguous),
    }
}

/// What of a token is in nobody's choice.
fn signed(word: &str) -> &str {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let token = word.find(is_letter).and_then(|start| word.get(start..)).unwrap_or(word);
    let mut dots = token.match_indices('.').map(|(at, _)| at);
    match (dots.next(), dots.next()) {
        // `{"` in Base64: the header of a JWT. Without a second part it is something else.
        (Some(first), Some(second)) if token.starts_with("eyJ") && second - first > 1 => {
            token.get(..second).unwrap_or(token)
        }
        _ => token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Dialect, Facts};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const ALL: [&str; 3] = ["authorization", "x-api-key", "api-key"];

    fn found(names: &[&str], headers: &[(&str, &str)]) -> Result<Option<String>, Ambiguous> {
        let facts = Facts::of(Dialect::Chat);
        let header = |name: &str| headers.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        let repeated =
            |name: &str| headers.iter().any(|(own, value)| *own == name && Some(*value) != header(name));
        let asked = Asked { facts: &facts, header: &header, repeated: &repeated, address: None };
        of(names, &asked).map(|credential| credential.map(str::to_owned))
    }

    fn some(credential: &str) -> Result<Option<String>, Ambiguous> {
        Ok(Some(credential.to_owned()))
    }

    #[test]
    fn a_credential_beside_another_is_refused_unless_its_header_is_the_one_that_is_named() {
        let random = [("x-api-key", "sk-real"), ("authorization", "Bearer 7f3a")];
        assert_eq!(found(&ALL, &random), Err(Ambiguous));
        assert_eq!(found(&["x-api-key"], &random), some("sk-real"));
        let same = [("x-api-key", "sk-real"), ("authorization", "Bearer sk-real")];
        assert_eq!(found(&ALL, &same), some("sk-real"));
        let twice = [("authorization", "Bearer 7f3a"), ("authorization", "Bearer sk-real")];
        assert_eq!(found(&ALL, &twice), Err(Ambiguous));
        assert_eq!(found(&["x-api-key"], &twice), Ok(None));
        assert_eq!(found(&ALL, &[("authorization", ""), ("api-key", "k")]), some("k"));
        assert_eq!(found(&ALL, &[]), Ok(None));
    }

    #[test]
    fn more_words_than_a_scheme_and_a_credential_are_refused() {
        for value in
            ["x 7f3a Bearer sk-real", "Bearer sk-real 7f3a", "Bearer a,Bearer b", "Bearer eyJh.eyJi.c2 ln"]
        {
            assert_eq!(found(&ALL, &[("authorization", value)]), Err(Ambiguous), "{value}");
        }
    }

    #[test]
    fn a_token_is_the_same_however_its_signature_is_written() {
        for value in [
            "Bearer eyJh.eyJi.c2ln",
            "bearer eyJh.eyJi.c2lo",
            "7f3aBearer eyJh.eyJi.c2ln==",
            "Bearer ~~eyJh.eyJi.c2ln,7f3a",
            "eyJh.eyJi.",
        ] {
            assert_eq!(found(&ALL, &[("authorization", value)]), some("eyJh.eyJi"), "{value}");
        }
        // What is no such token is a credential as it stands.
        for value in ["sk.a.b", "eyJh..eyJi", "eyJh.b", "~", "sk-1~2="] {
            assert_eq!(found(&ALL, &[("authorization", value)]), some(value), "{value}");
        }
    }
}
