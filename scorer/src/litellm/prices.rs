//! LiteLLM's prices as those that budgets are counted by.
//!
//! | LiteLLM, per token | `cost.prices`, per million |
//! |---|---|
//! | `input_cost_per_token` | `input` |
//! | `cache_read_input_token_cost` | `cached_input` |
//! | `output_cost_per_token` | `output` |
//! | `output_cost_per_reasoning_token` | `reasoning` |
//!
//! Money is counted in billionths of a dollar a token. A price that is no whole number of them is rounded up, so that no budget
//! lets through more than it says, and named. Every other price (of a cache's writes, of long contexts, of batches, of pictures,
//! sounds and searches) has no class here, and is named.
//!
//! A model of which a price is no price (negative, or above a dollar a token) is left out, and named: it costs what `other` does.
//!
//! `other`, what models without a price cost, is the dearest of each class that was read, and where a class costs nothing in all of them
//! the dearest of any: what nobody has priced must not be free. If nothing that was read costs anything, that is an error.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use weir::invalid::Invalid;
use weir::limit::PerMillion;

const CLASSES: [(&str, &str); 4] = [
    ("input_cost_per_token", "input"),
    ("cache_read_input_token_cost", "cached_input"),
    ("output_cost_per_token", "output"),
    ("output_cost_per_reasoning_token", "reasoning"),
];
/// Their places.
const INPUT: usize = 0;
const OUTPUT: usize = 2;

/// Billionths of a dollar that a token costs, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates([Option<u64>; 4]);

/// Whether a setting is a price that is carried over.
pub(super) fn is_carried(key: &str) -> bool {
    CLASSES.iter().any(|(theirs, _)| *theirs == key)
}

impl Rates {
    /// The prices among a model's settings, at this place; `None`: it has none per token, or one that is no price.
    pub(super) fn read(settings: &Map<String, Value>, at: &str, left_out: &mut Vec<Invalid>) -> Option<Self> {
        let mut rates = Self::default();
        let mut is_wrong = false;
        for (rate, (theirs, _)) in rates.0.iter_mut().zip(CLASSES) {
            let Some(value) = settings.get(theirs).filter(|value| !value.is_null()) else { continue };
            match nanos(value) {
                Ok((nanos, exact)) => {
                    *rate = Some(nanos);
                    if !exact {
                        let why = format!(
                            "{value} is no whole number of billionths; it is rounded up to {nanos} of them"
                        );
                        left_out.push(Invalid::new(format!("{at}.{theirs}"), why));
                    }
                }
                Err(why) => {
                    is_wrong = true;
                    left_out.push(Invalid::new(format!("{at}.{theirs}"), why));
                }
            }
        }
        if is_wrong || rates == Self::default() {
            return None;
        }
        for class in [INPUT, OUTPUT] {
            let (Some(rate), Some((theirs, _))) = (rates.0.get_mut(class), CLASSES.get(class)) else {
                continue;
            };
            if rate.is_none() {
                *rate = Some(0);
                left_out.push(Invalid::new(
                    format!("{at}.{theirs}"),
                    "missing; such tokens cost nothing, as in LiteLLM",
                ));
            }
        }
        Some(rates)
    }

    /// The dearer of two, class by class, and whether they differ.
    pub(super) fn dearer(self, other: Self) -> (Self, bool) {
        let mut rates = self.whole();
        for (rate, other) in rates.0.iter_mut().zip(other.whole().0) {
            *rate = (*rate).max(other);
        }
        (rates, self.whole() != other.whole())
    }

    /// Each class with a price of its own.
    fn whole(self) -> Self {
        let [input, cached, output, reasoning] = self.0;
        Self([input, cached.or(input), output, reasoning.or(output)])
    }

    fn json(self) -> Value {
        let prices = self.0.iter().zip(CLASSES);
        let prices = prices.filter_map(|(rate, (_, own))| Some((own.to_owned(), per_million((*rate)?))));
        prices.collect::<Map<String, Value>>().into()
    }
}

/// `cost.prices` of these models; `None`: of none.
pub(super) fn prices(models: &[(String, Rates)]) -> Result<Option<Value>, Invalid> {
    if models.is_empty() {
        return Ok(None);
    }
    let dearest = models.iter().fold(Rates::default(), |dearest, (_, rates)| dearest.dearer(*rates).0).0;
    let any = dearest.into_iter().flatten().max().unwrap_or(0);
    if any == 0 {
        let why = "every model that was read costs nothing, and so would all that nobody has priced; name one that has a price";
        return Err(Invalid::new("other", why));
    }
    let [input, _, output, reasoning] = dearest.map(|price| price.filter(|price| *price > 0).or(Some(any)));
    // Where nothing is known a cache is no rebate.
    let other = Rates([input, None, output, reasoning.filter(|_| reasoning != output)]);
    let mut by_name: BTreeMap<&str, Rates> = BTreeMap::new();
    for (name, rates) in models {
        // Two groups may be served by one model.
        let (dearer, differ) = by_name.get(name.as_str()).unwrap_or(rates).dearer(*rates);
        by_name.insert(name, if differ { dearer } else { *rates });
    }
    let by_name: Map<String, Value> =
        by_name.into_iter().map(|(name, rates)| (name.to_owned(), rates.json())).collect();
    Ok(Some(json!({"currency": "USD", "other": other.json(), "models": by_name})))
}

/// What this model costs by LiteLLM's price list: under the name that was given, or without the provider before it.
pub(super) fn listed<'a>(list: &'a Value, name: &str) -> Option<(&'a str, &'a Map<String, Value>)> {
    let entry = |name: &str| {
        let (name, settings) = list.as_object()?.get_key_value(name)?;
        Some((name.as_str(), settings.as_object()?))
    };
    entry(name).or_else(|| entry(name.split_once('/')?.1))
}

/// LiteLLM's price list as `cost` of `limit`, for these models: names of the list, beginnings of names with `*`, or `OWN=NAME`,
/// where the list calls the model otherwise.
pub fn import(list: &Value, wanted: &[String]) -> Result<(Value, Vec<Invalid>), Invalid> {
    let all =
        list.as_object().ok_or_else(|| Invalid::new("", "an object with a model per key is expected"))?;
    let (mut models, mut left_out): (Vec<(String, Rates)>, _) = (Vec::new(), Vec::new());
    for wish in wanted {
        let (own, name) = wish.split_once('=').map_or((None, wish.as_str()), |(own, name)| (Some(own), name));
        let fits = |key: &str| name.strip_suffix('*').map_or(key == name, |start| key.starts_with(start));
        let found = all.iter().filter(|(key, _)| *key != "sample_spec" && fits(key));
        let before = models.len();
        for (key, settings) in found {
            let Some(settings) = settings.as_object() else { continue };
            let Some(rates) = Rates::read(settings, key, &mut left_out) else {
                left_out.push(Invalid::new(key, "has no price per token; it is left out"));
                continue;
            };
            let own = own.unwrap_or(key);
            if own.trim_end_matches('*').contains('*') {
                left_out.push(Invalid::new(
                    key,
                    "is no name of a model, nor the beginning of one; it is left out",
                ));
                continue;
            }
            let is_other = |setting: &&String| setting.contains("cost") && !is_carried(setting);
            let others = settings.iter().filter(|(setting, value)| is_other(setting) && !is_nothing(value));
            left_out.extend(
                others.map(|(setting, _)| Invalid::new(format!("{key}.{setting}"), "not carried over")),
            );
            models.push((own.to_owned(), rates));
        }
        if models.len() == before {
            return Err(Invalid::new(name, "no model of the list with a price per token has this name"));
        }
    }
    let prices = prices(&models)?.ok_or_else(|| Invalid::new("", "no model was named"))?;
    let cost = json!({"prices": prices});
    weir_limit::read(json!({"limits": [], "cost": cost}).to_string().as_bytes())?;
    Ok((cost, left_out))
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_f64() == Some(0.0)
}

/// Billionths of a price, rounded up, and whether it is a whole number of them. Some write numbers as texts.
fn nanos(value: &Value) -> Result<(u64, bool), String> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let nanos = number.ok_or_else(|| format!("{value} is no price"))? * 1e9;
    let whole = nanos.round();
    let exact = (nanos - whole).abs() <= 1e-6 * whole.max(1e-3);
    let up = if exact { whole } else { nanos.ceil() };
    match (0.0..=1e9).contains(&up) {
        true => Ok((up as u64, exact)),
        false => Err(format!("{value} is no price of a token: 0 to 1")),
    }
}

fn per_million(nanos: u64) -> Value {
    let price = PerMillion::try_from(nanos as f64 / 1e3);
    price.map_or(Value::Null, |price| json!(f64::from(price)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of LiteLLM's list, as it was in 2025.
    fn list() -> Value {
        json!({
            "sample_spec": {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
            "gpt-4o": {"cache_read_input_token_cost": 1.25e-06, "input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05,
                       "input_cost_per_token_batches": 1.25e-06, "mode": "chat", "search_context_cost_per_query": null},
            "gpt-4o-mini": {"input_cost_per_token": 1.5e-07, "output_cost_per_token": 6e-07, "input_cost_per_image": 0.0},
            "amazon.nova-micro-v1:0": {"input_cost_per_token": 3.5e-08, "output_cost_per_token": 1.4e-07,
                       "cache_read_input_token_cost": 8.75e-09},
            "whisper-1": {"input_cost_per_second": 0.0001},
            "text-embedding-3-small": {"input_cost_per_token": 2e-08, "output_cost_per_token": 0.0},
        })
    }

    fn read(wanted: &[&str]) -> Result<(Value, Vec<String>), String> {
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        let (cost, left_out) = import(&list(), &wanted).map_err(|invalid| invalid.to_string())?;
        Ok((cost["prices"].clone(), left_out.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn listed_prices_are_exact_to_the_billionth_and_what_is_not_is_rounded_up_and_named() {
        let (prices, left_out) = read(&["gpt-4o*", "mine=amazon.nova-micro-v1:0"]).unwrap();
        assert_eq!(prices["models"]["gpt-4o"], json!({"input": 2.5, "cached_input": 1.25, "output": 10.0}));
        assert_eq!(prices["models"]["gpt-4o-mini"], json!({"input": 0.15, "output": 0.6}));
        assert_eq!(prices["models"]["mine"], json!({"input": 0.035, "cached_input": 0.009, "output": 0.14}));
        assert_eq!(prices["other"], json!({"input": 2.5, "output": 10.0}), "the dearest");
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].starts_with("gpt-4o.input_cost_per_token_batches: "), "{left_out:?}");
        assert!(
            left_out[1]
                .starts_with("amazon.nova-micro-v1:0.cache_read_input_token_cost: 8.75e-9 is no whole"),
            "{left_out:?}"
        );
    }

    #[test]
    fn what_has_no_price_per_token_is_named_and_what_is_not_there_is_an_error() {
        let (prices, left_out) = read(&["*"]).unwrap();
        assert_eq!(prices["models"].as_object().unwrap().len(), 4);
        assert!(
            left_out.contains(&"whisper-1: has no price per token; it is left out".to_owned()),
            "{left_out:?}"
        );
        assert!(read(&["gpt-5"]).unwrap_err().starts_with("gpt-5: no model"));
        assert!(read(&["whisper-1"]).is_err() && read(&["sample_spec"]).is_err() && read(&[]).is_err());
    }

    #[test]
    fn what_nobody_has_priced_is_never_free() {
        let of = |list: Value, wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
            import(&list, &wanted)
                .map(|(cost, _)| cost["prices"].clone())
                .map_err(|invalid| invalid.to_string())
        };
        let free = json!({"input_cost_per_token": 0.0, "output_cost_per_token": 0.0});
        let list = json!({"free": free, "negative": {"input_cost_per_token": -1e-6, "output_cost_per_token": 1e-6},
            "million": {"input_cost_per_token": 5, "output_cost_per_token": 15}, "good": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}});
        assert!(of(list.clone(), &["free"]).unwrap_err().starts_with("other: every model"));
        for wrong in ["negative", "million"] {
            assert!(
                of(list.clone(), &[wrong]).unwrap_err().starts_with(&format!("{wrong}: no model")),
                "{wrong}"
            );
        }
        let prices = of(list, &["*"]).unwrap();
        assert_eq!(prices["models"].as_object().unwrap().keys().collect::<Vec<_>>(), ["free", "good"]);
        assert_eq!(prices["other"], json!({"input": 1.0, "output": 2.0}));
        let embeds = json!({"e": {"input_cost_per_token": 2e-8, "output_cost_per_token": 0.0}});
        assert_eq!(of(embeds, &["e"]).unwrap()["other"], json!({"input": 0.02, "output": 0.02}));
    }

    #[test]
    fn texts_are_numbers_and_nonsense_is_named() {
        let settings = |value: Value| {
            let mut left_out = Vec::new();
            let settings = json!({"input_cost_per_token": value, "output_cost_per_token": 1e-9});
            let rates = Rates::read(settings.as_object().unwrap(), "m", &mut left_out);
            (rates.map(|rates| rates.0[INPUT]), left_out.len())
        };
        assert_eq!(settings(json!("0.0000025")), (Some(Some(2_500)), 0));
        assert_eq!(settings(serde_json::from_str("1.1999999999999999e-06").unwrap()), (Some(Some(1_200)), 0));
        assert_eq!(settings(json!(1e-13)), (Some(Some(1)), 1));
        for bad in [json!(-1e-6), json!(2), json!("dear"), json!([])] {
            assert_eq!(settings(bad.clone()), (None, 1), "{bad}");
        }
    }
}
