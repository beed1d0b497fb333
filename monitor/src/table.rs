//! A Sample for people: one line for each value, then one for each absent value with its reason.

use std::fmt::Write;

use serde_json::Value;
use slackwater_messages::Sample;

/// The Sample as lines of text.
pub fn table(sample: &Sample) -> String {
    let mut text =
        format!("{} in pool {}, Sample {} over {:.3} s\n", sample.node, sample.pool, sample.seq, sample.period_s);
    let sections = serde_json::to_value(sample).unwrap_or_default();
    for (section, values) in sections.as_object().into_iter().flatten() {
        if section == "absent" || section == "absence_causes" {
            continue;
        }
        for (name, value) in values.as_object().into_iter().flatten() {
            line(&mut text, &format!("{section}.{name}"), &short(value));
        }
        for scope in values.as_array().into_iter().flatten() {
            let scope_name = scope["scope"].as_str().unwrap_or_default();
            for (name, value) in scope.as_object().into_iter().flatten().filter(|(name, _)| *name != "scope") {
                line(&mut text, &format!("{section}.{scope_name}.{name}"), &short(value));
            }
        }
    }
    if !sample.absent.is_empty() {
        text.push_str("\nabsent, and why:\n");
        for (name, reason) in &sample.absent {
            line(&mut text, name, reason);
        }
    }
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {name:<28} {value}");
}

/// The value with four digits, which are enough for people.
fn short(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            let digits = if number.abs() >= 100.0 { 1 } else { 4 };
            format!("{number:.digits$}")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_messages::Cpu;

    #[test]
    fn values_and_reasons_stand_under_their_dotted_names() {
        let sample = Sample {
            node: "n1".to_owned(),
            pool: "web".to_owned(),
            period_s: 0.2,
            cpu: Some(Cpu { scope: "system".to_owned(), utilisation: Some(0.25), ..Cpu::default() }),
            absent: [("traffic".to_owned(), "no capture".to_owned())].into(),
            ..Sample::default()
        };
        assert_eq!(
            table(&sample),
            "n1 in pool web, Sample 0 over 0.200 s\n  \
             cpu.scope                    system\n  \
             cpu.utilisation              0.2500\n\n\
             absent, and why:\n  \
             traffic                      no capture\n"
        );
    }
}
