//! Which fields Envoy's messages have: a misspelt one is found without Envoy, and named with its path.
//!
//! The table is `fields.txt`. It holds the messages that an inference gateway's bootstrap is made of, each with all
//! its fields; whatever is in none of them is Envoy's to judge (`--envoy`).

use std::collections::HashMap;
use std::sync::LazyLock;

/// A message of the table.
#[derive(Debug)]
pub(super) struct Message {
    /// Its full name.
    pub name: String,
    /// Its fields, with the full name of the message they hold, where that is in the table.
    fields: Vec<(String, Option<String>)>,
}

static TABLE: LazyLock<HashMap<String, Message>> = LazyLock::new(|| parse(include_str!("fields.txt")));

/// The message of that full name.
pub(super) fn message(name: &str) -> Option<&'static Message> {
    TABLE.get(name)
}

/// The message that an `@type` or a `type_url` names.
pub(super) fn of_type_url(url: &str) -> Option<&'static Message> {
    message(type_name(url))
}

/// The full name of the message in a type URL.
pub(super) fn type_name(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

impl Message {
    /// What the field of that key holds, `None` when there is no such field. JSON knows a field by two names.
    pub(super) fn field(&self, key: &str) -> Option<Option<&'static Self>> {
        let (_, holds) = self.fields.iter().find(|(field, _)| field == key || camel(field) == key)?;
        Some(holds.as_deref().and_then(message))
    }

    /// The field that a misspelt key may have meant.
    pub(super) fn nearest(&self, key: &str) -> Option<&str> {
        nearest(key, self.fields.iter().map(|(field, _)| field.as_str()))
    }
}

/// The name that `word` may have meant, if one is near.
pub(super) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const NEAR: f64 = 0.65;
    let word = word.to_lowercase();
    let near = |name: &'a str| (strsim::normalized_damerau_levenshtein(&word, name), name);
    let best = names.map(near).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(near, _)| *near >= NEAR).map(|(_, name)| name)
}

/// A field's other name in protobuf's JSON: `lb_policy` is `lbPolicy`.
pub(super) fn camel(field: &str) -> String {
    let mut upper = false;
    let mut name = String::with_capacity(field.len());
    for letter in field.chars() {
        match letter {
            '_' => upper = true,
            letter if upper => {
                name.push(letter.to_ascii_uppercase());
                upper = false;
            }
            letter => name.push(letter),
        }
    }
    name
}

fn parse(table: &str) -> HashMap<String, Message> {
    let mut rows = Vec::new();
    let mut package = "";
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            package = name;
        } else if let Some((name, fields)) = line.split_once(": ") {
            rows.push((package, name, fields));
        }
    }
    // A message is named from its own package, or by a name that is unique, or in full.
    let find = |from: &str, name: &str| {
        let own = rows.iter().find(|row| (row.0, row.1) == (from, name));
        own.or_else(|| rows.iter().find(|row| row.1 == name))
            .map_or(name.to_owned(), |row| full(row.0, row.1))
    };
    let message = |&(package, name, fields): &(&str, &str, &str)| {
        let field = |field: &str| match field.split_once('=') {
            Some((field, holds)) => (field.to_owned(), Some(find(package, holds))),
            None => (field.to_owned(), None),
        };
        let name = full(package, name);
        (name.clone(), Message { name, fields: fields.split(' ').map(field).collect() })
    };
    rows.iter().map(message).collect()
}

fn full(package: &str, name: &str) -> String {
    format!("{package}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        assert_eq!(
            TABLE.len(),
            include_str!("fields.txt").lines().filter(|line| line.contains(": ")).count() - 1
        );
        for message in TABLE.values() {
            for (field, holds) in &message.fields {
                let known = holds.as_ref().is_none_or(|holds| TABLE.contains_key(holds));
                assert!(known, "{}.{field} holds {holds:?}", message.name);
            }
        }
    }

    #[test]
    fn a_field_has_two_names_and_others_are_near() {
        let cluster = message("envoy.config.cluster.v3.Cluster").unwrap();
        assert!(cluster.field("lb_policy").unwrap().is_none());
        assert_eq!(
            cluster.field("loadAssignment").unwrap().unwrap().name,
            "envoy.config.endpoint.v3.ClusterLoadAssignment"
        );
        assert!(cluster.field("lb_polic").is_none());
        assert_eq!(cluster.nearest("lb_polic"), Some("lb_policy"));
        assert_eq!(cluster.nearest("frobnicate"), None);
        assert_eq!(camel("accept_http_10"), "acceptHttp10");
    }
}
