//! Values that a Sample does not have, and why.

use slackwater_messages::Sample;

use crate::reason::Reason;

/// Notes that a value or a section is absent, and why.
pub(crate) fn absent(sample: &mut Sample, name: &str, reason: impl Into<Reason>) {
    let Reason { cause, text } = reason.into();
    sample.absent.insert(name.to_owned(), text);
    match cause {
        Some(cause) => sample.absence_causes.insert(name.to_owned(), cause),
        None => sample.absence_causes.remove(name),
    };
}

/// `put!(sample, SECTION.FIELD, VALUE)` puts a value into a variable of the section's name, or notes why it is absent.
macro_rules! put {
    ($sample:expr, $section:ident.$field:ident, $value:expr $(,)?) => {
        match $value {
            Ok(value) => $section.$field = Some(value),
            Err(reason) => {
                $crate::absence::absent($sample, concat!(stringify!($section), ".", stringify!($field)), reason)
            }
        }
    };
}
pub(crate) use put;
