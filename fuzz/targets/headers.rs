//! A map of headers in the form in which Envoy hands it over: damage is survived, and what was written is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_host::Headers;

fuzz_target!(|input: &[u8]| {
    let headers = Headers::decode(input.to_vec());
    let pairs: Vec<_> = headers.iter().collect();
    assert!(pairs.len() <= input.len() / 8);
    let again = Headers::decode(Headers::encode(&pairs));
    assert_eq!(again.iter().collect::<Vec<_>>(), pairs);
    for (name, value) in pairs.iter().rev() {
        assert!(headers.get(name).is_some(), "{name}: {value}");
    }
    // The same bytes as text, a header a line.
    if let Ok(text) = std::str::from_utf8(input) {
        let pairs: Vec<_> = text.lines().filter_map(|line| line.split_once(':')).collect();
        assert_eq!(Headers::decode(Headers::encode(&pairs)).iter().collect::<Vec<_>>(), pairs);
    }
});
