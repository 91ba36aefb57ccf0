//! A JSON visitor that takes any type anywhere.
//!
//! Serde's derive refuses a value of another type than declared. Engines coerce or reject odd values
//! themselves, and their error is better than ours, so reading a body must survive a `max_tokens` that is a
//! string and a `content` that is a number. A [`Sink`] says what it does with each kind of value; what it does
//! not name is skipped, without recursion, so nesting cannot exhaust the stack of a wasm VM.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Takes one JSON value.
pub(super) trait Sink<'a>: Sized {
    /// A string, borrowed where it has no escapes.
    fn text(&mut self, _: Cow<'a, str>) {}

    /// A number that is not negative; a fraction is cut off.
    fn number(&mut self, _: u64) {}

    /// A negative number; a fraction is cut off.
    fn negative(&mut self, _: i64) {}

    /// `true` or `false`.
    fn bool(&mut self, _: bool) {}

    /// A list.
    fn seq<A: SeqAccess<'a>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    /// An object.
    fn map<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Reads the next value into a sink: `map.next_value_seed(To(&mut sink))`.
pub(super) struct To<'s, S>(pub &'s mut S);

impl<'a, S: Sink<'a>> DeserializeSeed<'a> for To<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'a, S: Sink<'a>> Visitor<'a> for To<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.0.bool(value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.0.number(value);
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.negative(value);
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        // `as` saturates: a huge float is a huge number.
        if value < 0.0 {
            self.0.negative(value as i64);
        } else {
            self.0.number(value as u64);
        }
        Ok(())
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<(), E> {
        self.0.text(Cow::Borrowed(text));
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.text(Cow::Owned(text.to_owned()));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, seq: A) -> Result<(), A::Error> {
        self.0.seq(seq)
    }

    fn visit_map<A: MapAccess<'a>>(self, map: A) -> Result<(), A::Error> {
        self.0.map(map)
    }
}

/// A string, or nothing.
impl<'a> Sink<'a> for Option<Cow<'a, str>> {
    fn text(&mut self, text: Cow<'a, str>) {
        *self = Some(text);
    }
}

/// A number in any of the forms that engines coerce (`16`, `16.0`, `"16"`, `true`), or nothing.
impl<'a> Sink<'a> for Option<u64> {
    fn text(&mut self, text: Cow<'a, str>) {
        *self = text.parse().ok().or((text == "true").then_some(1));
    }

    fn number(&mut self, value: u64) {
        *self = Some(value);
    }

    fn bool(&mut self, value: bool) {
        *self = Some(u64::from(value));
    }
}

/// A number of tokens or answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Count {
    /// Not given.
    #[default]
    Absent,
    /// So many.
    Of(u64),
    /// Negative, or nothing that is certain to be one number to every engine: no bound can be taken from it.
    Odd,
}

impl Count {
    /// The number that a text spells.
    pub(super) fn of(text: &str) -> Self {
        text.parse().map_or(Self::Odd, Self::Of)
    }

    /// The number, or `default` when none is given. `None`: nobody knows.
    pub(super) fn or(self, default: Option<u64>) -> Option<u64> {
        match self {
            Self::Absent => default,
            Self::Of(count) => Some(count),
            Self::Odd => None,
        }
    }

    /// The larger of two.
    pub(super) fn larger(self, other: Self) -> Self {
        match (self, other) {
            (Self::Odd, _) | (_, Self::Odd) => Self::Odd,
            (Self::Of(one), Self::Of(two)) => Self::Of(one.max(two)),
            (one, Self::Absent) => one,
            (Self::Absent, two) => two,
        }
    }
}

impl<'a> Sink<'a> for Count {
    fn text(&mut self, text: Cow<'a, str>) {
        *self = Self::of(&text);
    }

    fn number(&mut self, count: u64) {
        *self = Self::Of(count);
    }

    fn negative(&mut self, _: i64) {
        *self = Self::Odd;
    }

    fn bool(&mut self, one: bool) {
        *self = Self::Of(u64::from(one));
    }
}

/// A number with its sign, or nothing.
impl<'a> Sink<'a> for Option<i64> {
    fn number(&mut self, value: u64) {
        *self = Some(i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn negative(&mut self, value: i64) {
        *self = Some(value);
    }
}

/// One member of an object: a text or a number. Where the value is a text, that is it.
#[derive(Default)]
pub(super) struct Inner<'a> {
    key: &'static str,
    pub text: Option<Cow<'a, str>>,
    pub number: Option<u64>,
}

impl<'a> Inner<'a> {
    /// Looks for `key` in JSON that has been read before.
    pub(super) fn of(json: Option<&'a RawValue>, key: &'static str) -> Self {
        let mut inner = Self { key, ..Self::default() };
        if let Some(json) = json {
            let mut json = serde_json::Deserializer::from_str(json.get());
            if json.deserialize_any(To(&mut inner)).is_err() {
                return Self::default();
            }
        }
        inner
    }
}

impl<'a> Sink<'a> for Inner<'a> {
    fn text(&mut self, text: Cow<'a, str>) {
        self.text = Some(text);
    }

    fn number(&mut self, number: u64) {
        self.number = Some(number);
    }

    fn map<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = next_key(&mut map)? {
            // What is deeper is not meant.
            match key == self.key {
                true => map.next_value_seed(To(&mut Leaf(self)))?,
                false => skip(&mut map)?,
            }
        }
        Ok(())
    }
}

struct Leaf<'b, 'a>(&'b mut Inner<'a>);

impl<'a> Sink<'a> for Leaf<'_, 'a> {
    fn text(&mut self, text: Cow<'a, str>) {
        self.0.text = Some(text);
    }

    fn number(&mut self, number: u64) {
        self.0.number = Some(number);
    }
}

/// The next key of an object, unescaped: `mod\u0065l` is `model`.
pub(super) fn next_key<'a, A: MapAccess<'a>>(map: &mut A) -> Result<Option<Cow<'a, str>>, A::Error> {
    let mut key: Option<Cow<'a, str>> = None;
    Ok(map.next_key_seed(To(&mut key))?.and(key))
}

/// The next value, as anything that has an empty state.
pub(super) fn next<'a, T: Sink<'a> + Default, A: MapAccess<'a>>(map: &mut A) -> Result<T, A::Error> {
    let mut value = T::default();
    map.next_value_seed(To(&mut value))?;
    Ok(value)
}

/// Passes over the next value.
pub(super) fn skip<'a, A: MapAccess<'a>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}
