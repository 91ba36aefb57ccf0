//! The filters' configurations: one that is refused says why, and one that is accepted can be shown with its defaults
//! filled in and read again, and a filter starts with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde_json::Value;
use weir::invalid::{self, Invalid};
use weir_host::Filter;
use weir_host::fake::{Worker, World};

fn check<F: Filter, C: Serialize>(input: &[u8], read: impl Fn(&[u8]) -> Result<C, Invalid>) {
    let text = std::str::from_utf8(input);
    match read(input) {
        Ok(config) => {
            let shown = serde_json::to_vec(&config).expect("a configuration can be shown");
            let again =
                read(&shown).unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&shown)));
            let value = |config| serde_json::to_value(config).unwrap();
            let (shown, again) = (value(config), value(again));
            assert!(same(&shown, &again), "{shown} reads as {again}");
            if let Ok(text) = text {
                assert!(Worker::<F>::of(&World::new(), text).is_ok(), "{} is read and refused", F::NAME);
            }
        }
        Err(invalid) => {
            assert!(!invalid.why.is_empty());
            if let Ok(text) = text {
                assert!(Worker::<F>::of(&World::new(), text).is_err(), "{} is not read, and runs", F::NAME);
            }
        }
    }
}

/// Whether two values are equal, but for the last digit of a fraction: serde_json reads those a little inexactly.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, one)| other.get(key).is_some_and(|other| same(one, other)))
        }
        (Value::Number(one), Value::Number(other)) if one.is_f64() => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap_or(f64::NAN));
            (one - other).abs() <= one.abs() * 1e-12
        }
        _ => one == other,
    }
}

fuzz_target!(|input: &[u8]| {
    check::<weir_extract::Extract, weir_extract::Config>(input, invalid::read);
    check::<weir_pick::Pick, _>(input, weir_pick::Config::read);
    check::<weir_limit::Limit, _>(input, weir_limit::read);
    check::<weir_meter::Meter, weir_meter::Config>(input, invalid::read);
    check::<weir_chain::Chain, _>(input, weir_chain::Config::read);
});
