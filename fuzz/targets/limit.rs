//! What `limit` reads of what workers share: whatever stands there, requests are admitted or refused in good form, and
//! settled; and what is written in its place can be read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use weir::instant::Instant;
use weir::limit::{Asked, Config, Limits, Outcome, Reach, Store, Verdict};
use weir::queue::{Line, Order};
use weir::request::{Dialect, Facts};
use weir::response::Usage;

/// A store in which everything is the input, until it is written.
struct Odd<'a> {
    input: &'a [u8],
    written: RefCell<HashMap<String, (Vec<u8>, u32)>>,
}

impl Store for Odd<'_> {
    fn get(&self, name: &str) -> Option<(Vec<u8>, u32)> {
        let written = self.written.borrow().get(name).cloned();
        Some(written.unwrap_or_else(|| (self.input.to_vec(), 1)))
    }

    fn put(&self, name: &str, value: &[u8], version: Option<u32>) -> bool {
        let (_, there) = self.get(name).unwrap_or_default();
        let fits = version == Some(there);
        if fits {
            self.written.borrow_mut().insert(name.to_owned(), (value.to_vec(), there + 1));
        }
        fits
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[first, minutes], stored)) = input.split_first_chunk() else { return };
    let config: Config = weir::invalid::read(
        br#"{"limits":[{"name":"a","key":["consumer"],"max_in_flight":3,"windows":[{"tokens":1000,"per_s":60},{"requests":9,"per_s":1}]},
            {"name":"b","key":["model"],"windows":[{"tokens":5000,"per_s":3600,"quota":true}]}]}"#,
    )
    .unwrap();
    let mut limits = Limits::new(&config, u64::from(first)).unwrap();
    let store = Odd { input: stored, written: RefCell::default() };
    let facts = Facts {
        model: Some("m".into()),
        prompt_tokens: 40,
        max_output_tokens: Some(60),
        ..Facts::of(Dialect::Chat)
    };
    let header = |name: &str| (name == "x-consumer-username").then_some("somebody");
    let mut now = Instant::from_millis(u64::from(minutes) * 60_000);
    for turn in 0..4_u64 {
        match limits.admit(
            &store,
            &Asked { facts: &facts, header: &header, repeated: &|_| false, address: None },
            Reach::Ask,
            now,
        ) {
            Verdict::Admitted(admitted) => {
                let usage = Usage { input: 40, output: turn * 20, ..Usage::default() };
                let charge = limits.settle(&store, admitted.ticket, &Outcome::Used(usage), now);
                assert_eq!(charge.cost, (40 + turn * 20) * 1_000);
            }
            Verdict::Denied(_) | Verdict::Short(_) | Verdict::Waits(_) => {}
            Verdict::Unlimited => panic!("both limits are for it"),
        }
        now = now + Duration::from_millis(700);
    }
    // A day later nothing of it counts any more, but for requests in flight, which it may have invented.
    let later = limits.admit(
        &store,
        &Asked { facts: &facts, header: &header, repeated: &|_| false, address: None },
        Reach::Alone,
        now + Duration::from_secs(90_000),
    );
    assert!(matches!(later, Verdict::Admitted(_)), "{later:?}");
    // A line, too, is called, left and written in good form, whatever it is.
    for order in [Order::Vtc, Order::Dlpm { quantum_tokens: std::num::NonZeroU32::MIN }] {
        let Some(mut line) = Line::read(order, &mut &*stored) else { continue };
        line.displace(u64::from(first), i32::from(minutes));
        while let Some(called) = line.call(now) {
            line.leave(called, now);
        }
        line.freed(now);
        line.forget(now);
        assert_eq!(line.waiting(), 0);
        let mut bytes = Vec::new();
        line.write(&mut bytes);
        assert_eq!(Line::read(order, &mut &bytes[..]), Some(line));
    }
});
