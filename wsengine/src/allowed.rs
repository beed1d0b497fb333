//! Which values Orders may set: a knob's setting.

use serde::{Deserialize, Serialize};
use slackwater_messages::Value;

/// Values that Orders may set: words, and whole numbers between the two numbers of the list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Item>")]
pub struct AllowedValues(Vec<Item>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Item {
    Number(i64),
    Word(String),
}

/// Longest list in characters: a value for each of 128 cores.
const LONGEST_LIST: usize = 1024;

/// Why an Order may not set a value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum ValueError {
    #[error("{0:?} has characters that no value has (letters, digits, `_`, `-`, `.` are fine)")]
    Characters(String),
    #[error("{0} is no whole number")]
    Fraction(f64),
    #[error("{0:?} in a list is no whole number; expected whole numbers with commas between them")]
    List(String),
    #[error("the value is no policy: {0}")]
    Policy(String),
    #[error("`{0}`: {1}")]
    Part(&'static str, Box<ValueError>),
    #[error("the value has {0} characters, and at most {LONGEST_LIST} are accepted")]
    Long(usize),
    #[error("{value} is not allowed here; allowed is {allowed}")]
    NotAllowed { value: String, allowed: String },
}

impl TryFrom<Vec<Item>> for AllowedValues {
    type Error = &'static str;

    fn try_from(items: Vec<Item>) -> Result<AllowedValues, &'static str> {
        let allowed = AllowedValues(items);
        let words = allowed.words().iter().all(|word| is_plain(word));
        let numbers = matches!(allowed.numbers()[..], [] | [_, _]) && allowed.numbers().is_sorted();
        let expected = "must be a list of words and of no or two whole numbers [lowest, highest]";
        if words && numbers { Ok(allowed) } else { Err(expected) }
    }
}

impl AllowedValues {
    /// Whether Orders may set nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn numbers(&self) -> Vec<i64> {
        self.0.iter().filter_map(|item| if let Item::Number(number) = item { Some(*number) } else { None }).collect()
    }

    /// The lowest and the highest whole number, where numbers may be set.
    pub fn bounds(&self) -> Option<(i64, i64)> {
        if let [lowest, highest] = self.numbers()[..] { Some((lowest, highest)) } else { None }
    }

    /// The words that may be set.
    pub fn words(&self) -> Vec<&str> {
        self.0.iter().filter_map(|item| if let Item::Word(word) = item { Some(word.as_str()) } else { None }).collect()
    }

    /// Whole numbers with commas between them, each within the bounds; or one number for all.
    ///
    /// # Errors
    /// Why Orders may not set it.
    pub fn check_each(&self, value: &Value) -> Result<Value, ValueError> {
        let Value::Word(list) = value else { return self.check(value) };
        if list.len() > LONGEST_LIST {
            return Err(ValueError::Long(list.len()));
        }
        let numbers = list.split(',').map(|text| match text.parse() {
            Ok(number) => self.check(&Value::Integer(number)),
            Err(_) => Err(ValueError::List(text.chars().take(80).collect())),
        });
        numbers.collect::<Result<Vec<_>, _>>().map(|_| value.clone())
    }

    /// The value as the knob takes it: a word, or a whole number.
    ///
    /// # Errors
    /// Why Orders may not set it.
    pub fn check(&self, value: &Value) -> Result<Value, ValueError> {
        let not_allowed = |value: String| Err(ValueError::NotAllowed { value, allowed: self.to_string() });
        let whole = match value {
            Value::Word(word) if !is_plain(word) => return Err(ValueError::Characters(word.clone())),
            Value::Word(word) if self.words().contains(&word.as_str()) => return Ok(value.clone()),
            Value::Word(word) => return not_allowed(format!("`{word}`")),
            Value::Integer(number) => *number,
            Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => *number as i64,
            Value::Number(number) => return Err(ValueError::Fraction(*number)),
        };
        match self.bounds() {
            Some((lowest, highest)) if (lowest..=highest).contains(&whole) => Ok(Value::Integer(whole)),
            _ => not_allowed(whole.to_string()),
        }
    }
}

impl std::fmt::Display for AllowedValues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<String> = self.words().iter().map(|word| format!("`{word}`")).collect();
        if let Some((lowest, highest)) = self.bounds() {
            parts.push(format!("{lowest} to {highest}"));
        }
        f.write_str(&if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") })
    }
}

fn is_plain(word: &str) -> bool {
    !word.is_empty()
        && word.len() <= 64
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_words_and_whole_numbers_within_the_bounds_may_be_set() {
        let allowed: AllowedValues = serde_json::from_str("[\"performance\", 10, 20]").expect("a list");
        let word = |word: &str| Value::Word(word.to_owned());
        assert_eq!(allowed.check(&Value::Integer(10)), Ok(Value::Integer(10)));
        assert_eq!(allowed.check(&Value::Number(20.0)), Ok(Value::Integer(20)));
        assert_eq!(allowed.check(&word("performance")), Ok(word("performance")));
        let refused = |value: &Value| allowed.check(value).unwrap_err().to_string();
        assert_eq!(refused(&Value::Integer(21)), "21 is not allowed here; allowed is `performance`, 10 to 20");
        assert!(refused(&Value::Number(10.5)).contains("no whole number"));
        assert!(allowed.check(&Value::Number(f64::NAN)).is_err());
        assert!(refused(&word("powersave")).starts_with("`powersave` is not allowed here"));
        for bad in ["performance;reboot", "$(reboot)", "a b", "a\nb", "", "../x", "`id`"] {
            assert!(refused(&word(bad)).contains("has characters that no value has"), "{bad}");
        }
        assert_eq!(allowed.check_each(&word("10,20")), Ok(word("10,20")));
        assert_eq!(allowed.check_each(&Value::Integer(11)), Ok(Value::Integer(11)));
        let refused_list = |list: &str| allowed.check_each(&word(list)).unwrap_err().to_string();
        assert!(refused_list("10,21").starts_with("21 is not allowed here"));
        assert!(refused_list("10,").starts_with("\"\" in a list is no whole number"));
        assert!(refused_list(&"10,".repeat(400)).starts_with("the value has 1200 characters"));
        let nothing = AllowedValues::default().check(&Value::Integer(1)).unwrap_err().to_string();
        assert!(nothing.ends_with("allowed is nothing"), "{nothing}");
    }
}
