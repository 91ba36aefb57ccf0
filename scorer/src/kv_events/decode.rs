//! What engines publish, from msgpack to the core's events.
//!
//! ```text
//! batch      [time, [event, …], rank?]                              or a map with ts, events
//! event      ["BlockStored", block_hashes, parent_block_hash, token_ids, block_size, lora_id?, medium?, lora_name?,
//!             extra_keys?, group_idx?, kv_cache_spec_kind?, …]
//!            ["BlockRemoved", block_hashes, medium?, group_idx?]    ["AllBlocksCleared"]
//!            or a map with the same names, and "type"
//! hash       an integer, signed or not, or bytes
//! ```
//!
//! vLLM wrote lists until 0.25 and maps since; SGLang writes lists, and a map with `cache_salt` as the last element.
//! Fields that are not known are let go, and so is an event that makes no sense: those beside it count.

use rmpv::ValueRef;
use rmpv::decode::read_value_ref_with_max_depth;
use weir::kv::{self, Batch, Event, Stored, Tier};
use weir::wire::name_hash;

/// How deep values may lie in each other.
const DEPTH: usize = 16;

type Value<'a> = ValueRef<'a>;

/// A batch from its bytes; `None` when it is none.
pub fn batch(mut payload: &[u8]) -> Option<Batch> {
    let value = read_value_ref_with_max_depth(&mut payload, DEPTH).ok()?;
    let (at, events) = match &value {
        Value::Array(fields) => (fields.first()?, fields.get(1)?),
        Value::Map(_) => (named(&value, "ts")?, named(&value, "events")?),
        _ => return None,
    };
    let Value::Array(events) = events else { return None };
    let mut batch = Batch { at: number(at)?, ..Batch::default() };
    for value in events {
        match event(value) {
            Read::Event(event) => batch.events.push(event),
            Read::Unknown => {}
            Read::Odd => batch.odd += 1,
        }
    }
    Some(batch)
}

/// What became of one event.
enum Read {
    Event(Event),
    /// Of a kind that says nothing of blocks.
    Unknown,
    Odd,
}

fn event(value: &Value<'_>) -> Read {
    let fields = Fields(value);
    let read = match fields.get("type", 0).and_then(text) {
        Some("BlockStored") => stored(&fields).map(Event::Stored),
        Some("BlockRemoved") => removed(&fields),
        Some("AllBlocksCleared") => Some(Event::Cleared),
        Some(_) => return Read::Unknown,
        None => None,
    };
    read.map_or(Read::Odd, Read::Event)
}

fn stored(fields: &Fields<'_>) -> Option<Stored> {
    let blocks = hashes(fields.get("block_hashes", 1)?)?;
    let parent = match fields.get("parent_block_hash", 2) {
        None => None,
        Some(parent) => Some(hash(parent)?),
    };
    let Value::Array(tokens) = fields.get("token_ids", 3)? else { return None };
    let tokens = tokens.iter().map(unsigned).collect::<Option<Vec<u32>>>()?;
    let id = fields.get("lora_id", 5);
    let name = fields.get("lora_name", 7).and_then(text);
    let adapter = match (name, id) {
        (Some(name), _) => Some(name_hash(name)),
        (None, None) => None,
        (None, Some(id)) => Some(kv::unnamed(match id {
            Value::Integer(id) => id.as_u64()?,
            id => name_hash(text(id)?),
        })),
    };
    let is_adapter = |key: &Value<'_>| name.is_some() && text(key) == name || id.is_some_and(|id| id == key);
    let mut keys = match fields.get("extra_keys", 8) {
        Some(Value::Array(blocks)) => blocks.iter().map(|keys| block_keys(keys, is_adapter)).collect(),
        // SGLang's map stands where others have a list.
        None | Some(Value::Map(_)) => Vec::new(),
        Some(_) => return None,
    };
    if let Some(salt) = fields.last().and_then(|last| named(last, "cache_salt")).and_then(text)
        && parent.is_none()
        && keys.is_empty()
    {
        keys.push(kv::salt(salt));
    }
    // One that says nothing of its kind is of an engine that has one kind only.
    let kind = fields.get("kv_cache_spec_kind", 10).and_then(text);
    let whole =
        kind.is_none_or(|kind| ["full_attention", "mla_attention", "sink_full_attention"].contains(&kind));
    Some(Stored {
        blocks,
        parent,
        tokens,
        block_tokens: fields.get("block_size", 4).and_then(unsigned)?,
        tier: Tier::of_medium(fields.get("medium", 6).and_then(text)),
        adapter,
        keys,
        group: fields.get("group_idx", 9).and_then(unsigned).unwrap_or(0),
        whole,
    })
}

fn removed(fields: &Fields<'_>) -> Option<Event> {
    Some(Event::Removed {
        blocks: hashes(fields.get("block_hashes", 1)?)?,
        tier: Tier::of_medium(fields.get("medium", 2).and_then(text)),
        group: fields.get("group_idx", 3).and_then(unsigned).unwrap_or(0),
    })
}

/// The keys of one block, without the adapter, which is told beside them.
fn block_keys(keys: &Value<'_>, is_adapter: impl Fn(&Value<'_>) -> bool) -> Option<u64> {
    let Value::Array(keys) = keys else { return None };
    let skipped = usize::from(keys.first().is_some_and(is_adapter));
    let bytes: Vec<Vec<u8>> = keys.iter().skip(skipped).map(written).collect();
    kv::keys(bytes.iter().map(Vec::as_slice))
}

/// A key as bytes: text as it is, as requests have a salt; anything else as it is written.
fn written(key: &Value<'_>) -> Vec<u8> {
    match text(key) {
        Some(text) => text.as_bytes().to_vec(),
        None => {
            let mut bytes = Vec::new();
            // To memory, which does not fail.
            let _ = rmpv::encode::write_value_ref(&mut bytes, key);
            bytes
        }
    }
}

/// The fields of an event: by their names in a map, by their places in a list. What is nil is not there.
struct Fields<'a>(&'a Value<'a>);

impl<'a> Fields<'a> {
    fn get(&self, name: &str, place: usize) -> Option<&'a Value<'a>> {
        let value = match self.0 {
            Value::Array(fields) => fields.get(place),
            map => named(map, name),
        };
        value.filter(|value| **value != Value::Nil)
    }

    /// The last field of a list.
    fn last(&self) -> Option<&'a Value<'a>> {
        match self.0 {
            Value::Array(fields) => fields.last(),
            _ => None,
        }
    }
}

fn named<'a>(value: &'a Value<'a>, name: &str) -> Option<&'a Value<'a>> {
    let Value::Map(fields) = value else { return None };
    fields.iter().find(|(key, _)| text(key) == Some(name)).map(|(_, value)| value)
}

fn hashes(value: &Value<'_>) -> Option<Vec<u64>> {
    let Value::Array(hashes) = value else { return None };
    hashes.iter().map(hash).collect()
}

fn hash(value: &Value<'_>) -> Option<u64> {
    match value {
        Value::Integer(number) => number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)),
        Value::Binary(bytes) => kv::keys([*bytes]),
        Value::String(bytes) => kv::keys([bytes.as_bytes()]),
        _ => None,
    }
}

fn text<'a>(value: &'a Value<'a>) -> Option<&'a str> {
    match value {
        Value::String(text) => text.as_str(),
        _ => None,
    }
}

fn unsigned(value: &Value<'_>) -> Option<u32> {
    match value {
        Value::Integer(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        _ => None,
    }
}

fn number(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::F64(number) => Some(*number),
        Value::F32(number) => Some(f64::from(*number)),
        Value::Integer(number) => number.as_f64(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
