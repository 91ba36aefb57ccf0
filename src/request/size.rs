//! How long a prompt is in tokens, before any engine has counted it; learned per model from what engines did count.
//!
//! ```text
//! tokens = text bytes * (tokens counted / bytes they were counted of) + token ids + media_tokens * images and sounds
//! ```
//!
//! Both sums forget a sixteenth at each answer, and begin with `bytes_per_token`. Sums and not a mean of ratios: a template
//! adds its tokens to the shortest prompt as to the longest, and those of long prompts are the estimates that matter. No
//! answer counts for more than 4,096 tokens, so that one prompt of odd text, however long, says little of the next.
//!
//! Prompts are what clients make of them, so none of it is one client's to say ([`crate::voices`]). A client's own voice, where that says more
//! tokens, counts for itself. Those without a name are one client, and where there are no others theirs is the middle. For others no voice counts
//! beyond half and twice what `bytes_per_token` says: that is all that many can do together.
//!
//! A field that is not read here may be text of the prompt to the engine (`documents`, a template of the client's own): its bytes count
//! as such, in the estimate alone. Nothing is learned of such a prompt, since nobody knows whether the engine counted them.
//!
//! Only the estimate is learned. Blocks are cut by the configured `bytes_per_token` for good: a cut that moved would
//! part every prompt from its beginning, and pools count their matches by shares of the prompt anyway.

use crate::voices::{MOST_MODELS, MOST_VOICES, Teacher, Voices};
use std::cmp::Ordering;

/// What is known of a prompt's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of text, roles and marks included.
    pub text: u64,
    /// Tokens that need no estimate by bytes: ids, and what stands for images and sounds.
    pub tokens: u64,
    /// Bytes of what is not read and may be text.
    pub unread: u64,
}

/// Tokens that engines counted, by the bytes they counted them of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    bytes: u64,
    tokens: u64,
}

impl Size {
    /// Its tokens, the last one rounded up.
    pub fn tokens(self, ratio: Ratio) -> u32 {
        let text =
            u128::from(self.text).saturating_add(self.unread.into()).saturating_mul(u128::from(ratio.tokens));
        let text = text.div_ceil(u128::from(ratio.bytes.max(1)));
        u32::try_from(text.saturating_add(u128::from(self.tokens))).unwrap_or(u32::MAX)
    }
}

/// Sums are in 256ths, so that forgetting rounds off little.
const PART: u64 = 256;
/// Tokens that `bytes_per_token` counts for, to begin with.
const START: u64 = 256;
/// Most tokens that one answer counts for.
const MOST_TOKENS: u64 = 4_096;
/// Text has no fewer bytes to a token (four bytes of a rare character can be four tokens), and no more.
const BYTES_PER_TOKEN: (u64, u64) = (1, 16);
/// From so many answers a voice is learned quickly; then from one in as many.
const SAMPLES: u32 = 16;
/// So many times what is configured, and as small a part of it, is the most that is learned.
const FAR: u64 = 2;

impl Ratio {
    /// So many bytes to a token.
    pub fn of(bytes_per_token: u32) -> Self {
        let tokens = START.saturating_mul(PART);
        Self { bytes: tokens.saturating_mul(u64::from(bytes_per_token)), tokens }
    }

    fn learn(&mut self, bytes: u64, tokens: u64) {
        let (least, most) = BYTES_PER_TOKEN;
        let mut tokens = tokens.clamp(bytes.div_ceil(most), bytes.saturating_mul(least));
        let mut bytes = bytes;
        if tokens > MOST_TOKENS {
            bytes = bytes.saturating_mul(MOST_TOKENS) / tokens;
            tokens = MOST_TOKENS;
        }
        let add = |sum: u64, more: u64| (sum - sum / 16).saturating_add(more.saturating_mul(PART));
        self.bytes = add(self.bytes, bytes);
        self.tokens = add(self.tokens, tokens);
    }

    /// Fewest tokens to the byte first.
    fn order(&self, other: &Self) -> Ordering {
        let across = |tokens: u64, bytes: u64| u128::from(tokens).saturating_mul(bytes.into());
        across(self.tokens, other.bytes).cmp(&across(other.tokens, self.bytes))
    }

    /// Not further from another than [`FAR`].
    fn near(self, start: Self) -> Self {
        let most = Self { tokens: start.tokens.saturating_mul(FAR), ..start };
        let least = Self { bytes: start.bytes.saturating_mul(FAR), ..start };
        match (self.order(&most), self.order(&least)) {
            (Ordering::Greater, _) => most,
            (_, Ordering::Less) => least,
            _ => self,
        }
    }
}

/// What is learned of each model; a teacher is a client, or all those without a name.
#[derive(Debug)]
pub struct Ratios {
    start: Ratio,
    voices: Voices<Option<u64>, Voice>,
    asked: u32,
}

/// What one client's prompts come to.
#[derive(Debug)]
struct Voice {
    ratio: Ratio,
    seen: u32,
}

impl Teacher for Option<u64> {
    fn is(&self, other: &Self) -> bool {
        self == other
    }
}

impl Ratios {
    /// Nothing is known yet but the configured ratio.
    pub fn new(bytes_per_token: u32) -> Self {
        Self { start: Ratio::of(bytes_per_token), voices: Voices::default(), asked: 0 }
    }

    /// The ratio to estimate a prompt of this client by; `None`: of nobody who can be told from others.
    pub fn of(&self, model: Option<&str>, client: Option<u64>) -> Ratio {
        let Some(model) = model else { return self.start };
        let near = |voice: &Voice| voice.ratio.near(self.start);
        let middle = match self.voices.of(model) {
            [(None, only)] => near(only),
            _ => self.voices.middle(model, near, Ratio::order, self.start),
        };
        let own = client.and_then(|_| self.voices.voice(model, &client)).map(|voice| voice.ratio);
        own.filter(|own| own.order(&middle).is_gt()).unwrap_or(middle)
    }

    /// Whether another answer of the model should be learned from. Each read of one costs a call to the host, and after
    /// some they say little new.
    pub fn wants(&mut self, model: &str, client: Option<u64>) -> bool {
        self.asked = self.asked.wrapping_add(1);
        let now_and_then = self.asked.is_multiple_of(SAMPLES);
        match (self.voices.voice(model, &client), self.voices.of(model).len()) {
            (Some(voice), _) => voice.seen < SAMPLES || now_and_then,
            (None, voices @ 1..) => voices < MOST_VOICES || now_and_then,
            // Where nothing was ever learned, nobody reads answers.
            (None, 0) if self.voices.models() == 0 => self.asked <= SAMPLES || now_and_then,
            (None, 0) => self.voices.models() < MOST_MODELS,
        }
    }

    /// An engine counted `counted` tokens in a prompt of that size.
    pub fn learn(&mut self, model: &str, client: Option<u64>, size: Size, counted: u64) {
        // With less text than a few words, most of what was counted is the template's or an image's.
        const LEAST_BYTES: u64 = 32;
        let Some(tokens) = counted.checked_sub(size.tokens).filter(|tokens| *tokens > 0) else { return };
        if size.text < LEAST_BYTES || size.unread > 0 {
            return;
        }
        self.voices.teach(model, &client, |before| {
            let mut voice = before.unwrap_or(Voice { ratio: self.start, seen: 0 });
            voice.ratio.learn(size.text, tokens);
            voice.seen = voice.seen.saturating_add(1);
            voice
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn text(bytes: u64) -> Size {
        Size { text: bytes, ..Size::default() }
    }

    #[test]
    fn a_model_is_estimated_as_configured_until_it_has_answered_and_then_as_its_engine_counts() {
        let mut ratios = Ratios::new(4);
        assert_eq!(text(4_001).tokens(ratios.of(Some("m"), None)), 1_001);
        for _ in 0..60 {
            ratios.learn("m", None, text(4_000), 2_000);
        }
        let learned = text(4_000).tokens(ratios.of(Some("m"), None));
        assert!((1_980..=2_020).contains(&learned), "{learned}");
        assert_eq!(text(4_000).tokens(ratios.of(Some("n"), None)), 1_000, "another model's");
        assert_eq!(text(4_000).tokens(ratios.of(None, None)), 1_000);
    }

    fn tokens(ratios: &Ratios, client: u64) -> u32 {
        text(4_000).tokens(ratios.of(Some("m"), Some(client)))
    }

    #[test]
    fn one_client_moves_the_estimate_of_nobody_else_and_its_own_only_up() {
        for (counted, own) in [(4_000, 3_900..=4_000), (250, 1_000..=1_000)] {
            let mut ratios = Ratios::new(4);
            (0..200).for_each(|_| ratios.learn("m", Some(1), text(4_000), counted));
            assert_eq!(tokens(&ratios, 2), 1_000);
            assert!(own.contains(&tokens(&ratios, 1)), "{}", tokens(&ratios, 1));
        }
    }

    #[test]
    fn among_others_one_client_moves_the_estimate_no_further_than_to_the_next_voice() {
        for extreme in [250, 4_000] {
            let mut ratios = Ratios::new(4);
            for (client, counted) in [(1, 800), (2, 850), (3, 830), (4, 820)] {
                (0..100).for_each(|_| ratios.learn("m", Some(client), text(4_000), counted));
            }
            let before = tokens(&ratios, 9);
            (0..500).for_each(|_| ratios.learn("m", Some(7), text(4_000), extreme));
            assert!((800..=860).contains(&before) && (800..=860).contains(&tokens(&ratios, 9)), "{extreme}");
        }
    }

    #[test]
    fn however_many_clients_there_are_their_voices_are_few_and_nobody_is_estimated_beyond_twice_or_half() {
        let mut ratios = Ratios::new(4);
        (0..1_000).for_each(|client| ratios.learn("m", Some(client % 100), text(4_000), 4_000));
        assert_eq!(ratios.voices.of("m").len(), MOST_VOICES);
        assert!((1_000..=2_000).contains(&tokens(&ratios, 500)));
        let wanted = (0..16_000).filter(|client| ratios.wants("m", Some(1_000 + client))).count();
        assert_eq!(wanted, 1_000, "strangers are learned from now and then");
    }

    #[test]
    fn one_prompt_of_odd_text_says_little_however_long_it_is() {
        let mut ratios = Ratios::new(4);
        for _ in 0..60 {
            ratios.learn("m", None, text(4_000), 1_000);
        }
        ratios.learn("m", None, text(1 << 24), 1 << 24);
        let after = text(4_000).tokens(ratios.of(Some("m"), None));
        assert!((1_000..1_250).contains(&after), "{after}");
    }

    #[test]
    fn a_count_that_no_text_has_is_held_to_one_that_some_has() {
        let mut ratios = Ratios::new(4);
        for _ in 0..200 {
            ratios.learn("more", None, text(4_000), u64::MAX);
            ratios.learn("less", None, text(4_000), 1);
        }
        assert!((1_990..=2_000).contains(&text(4_000).tokens(ratios.of(Some("more"), None))));
        assert!((500..=501).contains(&text(4_000).tokens(ratios.of(Some("less"), None))));
    }

    #[test]
    fn ids_and_images_are_no_text() {
        let mut ratios = Ratios::new(4);
        let size = Size { text: 400, tokens: 1_000, unread: 0 };
        assert_eq!(size.tokens(ratios.of(None, None)), 1_100);
        ratios.learn("m", None, size, 900);
        assert_eq!(
            size.tokens(ratios.of(Some("m"), None)),
            1_100,
            "fewer than the images were thought to be"
        );
        (0..60).for_each(|_| ratios.learn("m", None, size, 1_200));
        let learned = size.tokens(ratios.of(Some("m"), None));
        assert!((1_190..=1_210).contains(&learned), "{learned}");
    }

    #[test]
    fn what_is_not_read_counts_as_text_and_teaches_nothing() {
        let mut ratios = Ratios::new(4);
        let size = Size { text: 400, tokens: 0, unread: 40_000 };
        assert_eq!(size.tokens(ratios.of(Some("m"), None)), 10_100);
        (0..60).for_each(|_| ratios.learn("m", None, size, 100));
        assert_eq!(size.tokens(ratios.of(Some("m"), None)), 10_100);
    }

    #[test]
    fn answers_are_wanted_often_at_first_and_seldom_later() {
        let mut ratios = Ratios::new(4);
        let mut wanted = 0;
        for _ in 0..16_016 {
            if ratios.wants("m", None) {
                wanted += 1;
                ratios.learn("m", None, text(400), 100);
            }
        }
        assert!((1_000..1_100).contains(&wanted), "{wanted}");
    }

    #[test]
    fn where_nobody_reads_answers_they_are_asked_for_seldom() {
        let mut ratios = Ratios::new(4);
        assert_eq!((0..1_600).filter(|_| ratios.wants("m", None)).count(), 115);
    }

    #[test]
    fn the_number_of_models_is_bounded() {
        let mut ratios = Ratios::new(4);
        (0..1_000).for_each(|n| ratios.learn(&format!("m{n}"), None, text(400), 200));
        assert_eq!(ratios.voices.models(), MOST_MODELS);
        assert!(!ratios.wants("another", None) && ratios.wants("m0", None));
    }

    #[test]
    fn no_size_overflows() {
        let mut ratios = Ratios::new(u32::MAX);
        let huge = Size { text: u64::MAX, tokens: u64::MAX, unread: u64::MAX };
        assert_eq!(huge.tokens(ratios.of(None, None)), u32::MAX);
        ratios.learn("m", None, Size { text: u64::MAX, ..Size::default() }, u64::MAX);
        assert_eq!(huge.tokens(ratios.of(Some("m"), None)), u32::MAX);
        assert_eq!(Size::default().tokens(ratios.of(Some("m"), None)), 0);
    }
}
