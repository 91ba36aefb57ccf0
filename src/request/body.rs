//! One pass over a JSON body: the few fields that matter, borrowed from it; everything else skipped.

use super::dialect::Dialect;
use super::segment::{Content, Segment};
use super::sink::{Count, Inner, Sink, To, next, next_key, skip};
use super::size::Size;
use serde::de::{Deserializer, MapAccess, SeqAccess};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;

/// Most pieces of a prompt: messages, parts of messages, prompts of a list.
pub(super) const MOST_PIECES: usize = 1 << 16;

/// What the body says about the model.
#[derive(Debug, Default)]
pub(super) enum Model<'a> {
    #[default]
    Absent,
    One(Cow<'a, str>),
    Wrong(&'static str),
}

/// The fields of all dialects. Only the prompt has to know which: `text` is one in SGLang's and a format in OpenAI's
/// responses.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    prompt_fields: &'static [&'static str],
    /// A field that came twice. Which of two counts is not the same everywhere: Python's last, RapidJSON's first.
    pub twice: Option<&'static str>,
    pub model: Model<'a>,
    model_raw: Option<&'a str>,
    pub stream: bool,
    pub max_tokens: Count,
    pub max_completion_tokens: Count,
    pub max_output_tokens: Count,
    /// vLLM's and SGLang's: the engine writes on until then, whatever the model says.
    pub min_tokens: Count,
    /// The bound in `sampling_params`, vLLM's or SGLang's.
    pub sampled: Count,
    pub n: Count,
    best_of: Count,
    tools: Option<&'a RawValue>,
    system: Vec<Segment<'a>>,
    pub turns: Vec<Segment<'a>>,
    prompts: u64,
    // What changes the prompt, or who may share its cache, without being text of it.
    cache_salt: Option<&'a RawValue>,
    reasoning_effort: Option<&'a RawValue>,
    reasoning: Option<&'a RawValue>,
    thinking: Option<&'a RawValue>,
    template: Option<&'a RawValue>,
    /// What else may be part of the prompt.
    pub unread: Size,
    // Who asks, and what for.
    pub user: Option<Cow<'a, str>>,
    safety_identifier: Option<Cow<'a, str>>,
    metadata: Option<&'a RawValue>,
    prompt_cache_key: Option<Cow<'a, str>>,
    conversation: Option<&'a RawValue>,
    output_config: Option<&'a RawValue>,
    priority: Option<i64>,
    pub service_tier: Option<Cow<'a, str>>,
}

/// The fields that are read and may come once, besides the prompt's.
const FIELDS: [&str; 27] = [
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "min_new_tokens",
    "n",
    "best_of",
    "sampling_params",
    "tools",
    "cache_salt",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "chat_template_kwargs",
    "system",
    "instructions",
    "user",
    "safety_identifier",
    "metadata",
    "prompt_cache_key",
    "conversation",
    "output_config",
    "priority",
    "service_tier",
    "messages",
];

impl<'a> Body<'a> {
    pub(super) fn read(text: &'a str, dialect: Dialect) -> Result<Self, serde_json::Error> {
        let mut body = Self { prompt_fields: dialect.prompt_fields(), ..Self::default() };
        let mut json = serde_json::Deserializer::from_str(text);
        json.deserialize_map(To(&mut body))?;
        json.end()?;
        Ok(body)
    }

    /// Where in `body`, which this was read from, the model's value stands, quotes included.
    pub(super) fn model_at(&self, body: &[u8]) -> Option<Range<usize>> {
        let raw = self.model_raw?;
        let start = raw.as_ptr().addr().checked_sub(body.as_ptr().addr())?;
        Some(start..start.saturating_add(raw.len()))
    }

    /// Whether the prompt has more pieces than are kept. A piece of three bytes takes dozens in memory, and wasm memory
    /// is never given back.
    pub(super) fn has_too_many_pieces(&self) -> bool {
        self.system.len() >= MOST_PIECES || self.turns.len() >= MOST_PIECES
    }

    /// Answers asked for per prompt; `None` when nobody knows.
    pub(super) fn choices(&self) -> Option<u64> {
        Some(self.n.larger(self.best_of).or(Some(1))?.max(1))
    }

    /// Prompts in the request.
    pub(super) fn prompts(&self) -> u64 {
        self.prompts.max(1)
    }

    /// Everything that keeps two equal texts from sharing a cache.
    pub(super) fn seed(&self, model: Option<&str>) -> Vec<u8> {
        let mut seed = model.unwrap_or_default().as_bytes().to_vec();
        for part in [self.cache_salt, self.reasoning_effort, self.reasoning, self.thinking, self.template] {
            seed.push(0);
            seed.extend_from_slice(part.map_or("", RawValue::get).as_bytes());
        }
        seed
    }

    /// How hard the model is asked to think, in a word.
    pub(super) fn effort(&self) -> Option<Cow<'a, str>> {
        let all = [self.reasoning_effort, self.reasoning, self.output_config];
        all.into_iter().find_map(|json| Inner::of(json, "effort").text)
    }

    /// How many tokens it may think.
    pub(super) fn thinking_tokens(&self) -> Option<u64> {
        Inner::of(self.thinking, "budget_tokens").number
    }

    /// vLLM's priority: lower comes first.
    pub(super) fn priority(&self) -> Option<i32> {
        self.priority.map(|value| i32::try_from(value).unwrap_or(if value < 0 { i32::MIN } else { i32::MAX }))
    }

    /// What the client says keeps its requests together.
    pub(super) fn session(&self) -> Option<Cow<'a, str>> {
        let conversation = || Inner::of(self.conversation, "id").text;
        conversation().or_else(|| self.prompt_cache_key.clone()).filter(|name| !name.is_empty())
    }

    /// The client's name for its own user.
    pub(super) fn user(&self) -> Option<Cow<'a, str>> {
        let given = self.safety_identifier.clone().or_else(|| self.user.clone());
        given.or_else(|| Inner::of(self.metadata, "user_id").text).filter(|name| !name.is_empty())
    }

    fn note(&mut self, key: &str, seen: &mut u64) {
        let fields = FIELDS.iter().chain(self.prompt_fields.iter().filter(|field| **field != "messages"));
        let Some((place, field)) = fields.enumerate().find(|(_, field)| **field == key) else { return };
        let bit = 1_u64.checked_shl(place as u32).unwrap_or(0);
        if *seen & bit != 0 {
            self.twice = Some(field);
        }
        *seen |= bit;
    }

    /// Tools, then the system's words, then the turns: the order of every known chat template.
    pub(super) fn into_prompt(mut self, dialect: Dialect) -> Vec<Segment<'a>> {
        if dialect == Dialect::Responses {
            // There a bare string is a user's turn; elsewhere it is a prompt as it stands.
            self.turns
                .iter_mut()
                .filter(|turn| turn.role.is_empty())
                .for_each(|turn| turn.role = "user".into());
        }
        let mut prompt = Vec::with_capacity(self.system.len() + self.turns.len() + 1);
        prompt.extend(self.tools.map(|tools| Segment { role: "tools".into(), content: Content::Raw(tools) }));
        prompt.extend(self.system);
        prompt.extend(self.turns);
        prompt
    }
}

impl<'a> Sink<'a> for Body<'a> {
    fn map<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        let mut seen = 0;
        let mut other_model = false;
        while let Some(key) = next_key(&mut map)? {
            self.note(&key, &mut seen);
            match &*key {
                "model" => {
                    let raw: &RawValue = map.next_value()?;
                    self.model_raw = Some(raw.get());
                    self.model = Model::Wrong("not a string");
                    let mut value = serde_json::Deserializer::from_str(raw.get());
                    if value.deserialize_any(To(&mut self.model)).is_err() {
                        self.model = Model::Wrong("has a lone surrogate");
                    }
                }
                "stream" => self.stream = next::<Option<u64>, _>(&mut map)?.is_some_and(|value| value != 0),
                "max_tokens" => self.max_tokens = next(&mut map)?,
                "max_completion_tokens" => self.max_completion_tokens = next(&mut map)?,
                "max_output_tokens" => self.max_output_tokens = next(&mut map)?,
                "min_tokens" | "min_new_tokens" => self.min_tokens = self.min_tokens.larger(next(&mut map)?),
                "n" => self.n = next(&mut map)?,
                "best_of" => self.best_of = next(&mut map)?,
                "sampling_params" => map.next_value_seed(To(&mut Sampling(self)))?,
                "tools" => self.tools = raw(&mut map)?,
                "cache_salt" => self.cache_salt = raw(&mut map)?,
                "reasoning_effort" => self.reasoning_effort = raw(&mut map)?,
                "reasoning" => self.reasoning = raw(&mut map)?,
                "thinking" => self.thinking = raw(&mut map)?,
                "chat_template_kwargs" => {
                    self.template = raw(&mut map)?;
                    self.unread.add_unread(&key, self.template.map_or(0, |json| json.get().len()));
                }
                "user" => self.user = next(&mut map)?,
                "safety_identifier" => self.safety_identifier = next(&mut map)?,
                "metadata" => self.metadata = raw(&mut map)?,
                "prompt_cache_key" => self.prompt_cache_key = next(&mut map)?,
                "conversation" => self.conversation = raw(&mut map)?,
                "output_config" => self.output_config = raw(&mut map)?,
                "priority" => self.priority = next(&mut map)?,
                "service_tier" => self.service_tier = next(&mut map)?,
                "system" => {
                    let into = &mut self.system;
                    map.next_value_seed(To(&mut Prompt { role: "system", level: Level::Parts, into }))?;
                }
                "instructions" => {
                    let into = &mut self.system;
                    map.next_value_seed(To(&mut Prompt { role: "instructions", level: Level::Parts, into }))?;
                }
                field if self.prompt_fields.contains(&field) => {
                    let before = self.turns.len();
                    let into = &mut self.turns;
                    map.next_value_seed(To(&mut Prompt { role: "", level: Level::Whole, into }))?;
                    self.prompts = self.turns.len().saturating_sub(before) as u64;
                }
                // SGLang's, beside its text.
                "image_data" | "audio_data" | "video_data" => {
                    let media = raw(&mut map)?.map(|value| Content::Media(value.get().as_bytes()));
                    self.turns.extend(media.map(|content| Segment { role: key, content }));
                }
                field => {
                    other_model |= field.eq_ignore_ascii_case("model");
                    self.unread.add_unread(field, map.next_value::<&RawValue>()?.get().len());
                }
            }
        }
        if other_model {
            self.model = Model::Wrong("also given in another spelling, which some engines take for it");
        }
        Ok(())
    }
}

/// The next value as it stands; `null` is none.
fn raw<'a, A: MapAccess<'a>>(map: &mut A) -> Result<Option<&'a RawValue>, A::Error> {
    Ok(Some(map.next_value::<&RawValue>()?).filter(|value| value.get() != "null"))
}

impl<'a> Sink<'a> for Model<'a> {
    fn text(&mut self, name: Cow<'a, str>) {
        *self = Self::One(name);
    }
}

/// `sampling_params`: vLLM's, SGLang's, or SGLang's for each prompt of a list, of which the largest counts.
struct Sampling<'b, 'a>(&'b mut Body<'a>);

impl<'a> Sink<'a> for Sampling<'_, 'a> {
    fn seq<A: SeqAccess<'a>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(To(self))?.is_some() {}
        Ok(())
    }

    fn map<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = next_key(&mut map)? {
            match &*key {
                "max_new_tokens" | "max_tokens" => self.0.sampled = self.0.sampled.larger(next(&mut map)?),
                "min_new_tokens" | "min_tokens" => {
                    self.0.min_tokens = self.0.min_tokens.larger(next(&mut map)?)
                }
                "n" => self.0.n = self.0.n.larger(next(&mut map)?),
                _ => skip(&mut map)?,
            }
        }
        Ok(())
    }
}

/// Where in a prompt a value stands; lists and objects mean something else at each level.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    /// The whole field: a prompt, or a list of prompts, token ids or messages.
    Whole,
    /// A member of that list: a prompt, a token id, a list of token ids, a message.
    Member,
    /// One token id of such an inner list.
    Id,
    /// What a message says: a string, or a list of parts.
    Parts,
    /// One part.
    Part,
}

/// Whatever can be a prompt, or a piece of one.
struct Prompt<'b, 'a> {
    role: &'static str,
    level: Level,
    into: &'b mut Vec<Segment<'a>>,
}

impl<'a> Prompt<'_, 'a> {
    fn push(&mut self, content: Content<'a>) {
        self.keep(Segment { role: self.role.into(), content });
    }

    fn keep(&mut self, segment: Segment<'a>) {
        if self.into.len() < MOST_PIECES {
            self.into.push(segment);
        }
    }

    fn at(&mut self, level: Level) -> Prompt<'_, 'a> {
        Prompt { role: self.role, level, into: self.into }
    }

    /// A message. Its keys come in any order, and who speaks goes before what is said.
    fn message<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        let first = self.into.len();
        let mut speaker: Option<Cow<'a, str>> = None;
        let mut rest = Vec::new();
        while let Some(key) = next_key(&mut map)? {
            match &*key {
                "role" => speaker = next(&mut map)?,
                "content" => {
                    self.into.truncate(first);
                    map.next_value_seed(To(&mut self.at(Level::Parts)))?;
                }
                // What labels an item is no text of the prompt.
                "type" | "id" | "status" | "cache_control" => skip(&mut map)?,
                _ => {
                    let raw: &RawValue = map.next_value()?;
                    if raw.get() != "null" && rest.len() < MOST_PIECES {
                        rest.push(Segment { content: Content::of(&key, raw), role: key });
                    }
                }
            }
        }
        for segment in self.into.iter_mut().skip(first) {
            if let (Some(speaker), Content::Text(_)) = (&speaker, &segment.content) {
                segment.role.clone_from(speaker);
            }
        }
        rest.into_iter().for_each(|segment| self.keep(segment));
        Ok(())
    }

    /// A part of a message: its text, an image, or a tool's result, which has parts of its own.
    fn part<A: MapAccess<'a>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = next_key(&mut map)? {
            match &*key {
                "text" => map.next_value_seed(To(&mut self.at(Level::Part)))?,
                "content" => map.next_value_seed(To(&mut self.at(Level::Parts)))?,
                "type" | "cache_control" => skip(&mut map)?,
                _ => {
                    let raw = map.next_value()?;
                    self.keep(Segment { content: Content::of(&key, raw), role: key });
                }
            }
        }
        Ok(())
    }
}

impl<'a> Sink<'a> for Prompt<'_, 'a> {
    fn text(&mut self, text: Cow<'a, str>) {
        self.push(Content::Text(text));
    }

    fn number(&mut self, id: u64) {
        let bytes = (id as u32).to_le_bytes();
        match self.into.last_mut() {
            Some(Segment { content: Content::Tokens(ids), .. }) => ids.extend_from_slice(&bytes),
            _ => self.push(Content::Tokens(bytes.to_vec())),
        }
    }

    fn seq<A: SeqAccess<'a>>(&mut self, mut seq: A) -> Result<(), A::Error> {
        let inner = match self.level {
            Level::Whole => Level::Member,
            Level::Parts => Level::Part,
            Level::Member => {
                // Each inner list is a prompt of its own, even an empty one.
                self.push(Content::Tokens(Vec::new()));
                Level::Id
            }
            Level::Id | Level::Part => return Sink::seq(&mut None::<u64>, seq),
        };
        while seq.next_element_seed(To(&mut self.at(inner)))?.is_some() {}
        Ok(())
    }

    fn map<A: MapAccess<'a>>(&mut self, map: A) -> Result<(), A::Error> {
        match self.level {
            Level::Whole | Level::Member => self.message(map),
            Level::Parts | Level::Part => self.part(map),
            Level::Id => Sink::map(&mut None::<u64>, map),
        }
    }
}
