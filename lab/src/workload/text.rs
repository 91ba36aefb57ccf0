//! Prompts spelled out, for a real gateway: as many tokens, and the same beginnings in common.
//!
//! A [`Piece`] becomes words drawn by its id alone, so equal pieces are equal text and a shorter one is the beginning of a
//! longer. Every word is a space and three letters, which the tokenizers of today's models take as one token. The answers
//! of earlier requests come back as what the engine really wrote, in messages of the assistant, as clients send them.

use super::Piece;
use weir::random::Random;

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `user` or `assistant`.
    pub role: &'static str,
    /// What it says.
    pub text: String,
}

const WORDS: [&str; 32] = [
    " the", " and", " for", " you", " not", " are", " all", " new", " was", " can", " has", " but", " our",
    " one", " may", " out", " use", " any", " see", " his", " who", " get", " how", " now", " two", " way",
    " day", " old", " man", " her", " few", " put",
];

/// The text of a piece. Another `salt` makes another text of it, that shares nothing with the first.
pub fn words(piece: Piece, salt: u64) -> String {
    let mut random = Random::new(Random::new(piece.id ^ Random::new(salt).next()).next());
    (0..piece.tokens).map(|_| WORDS[random.below(WORDS.len())]).collect()
}

/// A prompt as a chat; `answered` has the text of an earlier answer by its id. Neighbours of one role are one message: some
/// templates insist on turns.
pub fn messages<'a>(prompt: &[Piece], salt: u64, answered: impl Fn(u64) -> Option<&'a str>) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    for piece in prompt {
        let (role, text) = match answered(piece.id) {
            Some(text) => ("assistant", text.to_owned()),
            None => ("user", words(*piece, salt)),
        };
        match all.last_mut().filter(|last| last.role == role) {
            Some(last) => last.text.push_str(&text),
            None => all.push(Message { role, text }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pieces_are_equal_text_and_a_shorter_one_is_its_beginning() {
        let piece = |id, tokens| Piece { id, tokens };
        let long = words(piece(7, 100), 1);
        assert_eq!(long.len(), 400, "four bytes a token");
        assert!(long.starts_with(&words(piece(7, 40), 1)));
        assert_ne!(long[..80], words(piece(8, 100), 1)[..80]);
        assert_ne!(long[..80], words(piece(7, 100), 2)[..80], "another salt is another text");
    }

    #[test]
    fn answers_come_back_as_they_were_in_turns() {
        let pieces = [(1, 2), (2, 3), (50, 9), (51, 9), (3, 1)].map(|(id, tokens)| Piece { id, tokens });
        let said = messages(&pieces, 1, |id| match id {
            50 => Some("yes"),
            51 => Some(" no"),
            _ => None,
        });
        let roles: Vec<&str> = said.iter().map(|message| message.role).collect();
        assert_eq!(roles, ["user", "assistant", "user"]);
        assert_eq!((said[0].text.len(), said[1].text.as_str(), said[2].text.len()), (20, "yes no", 4));
    }
}
