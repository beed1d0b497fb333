//! Lists of numbers as the kernel writes them.

/// Higher than any number of a CPU; a list with a higher number is not from the kernel.
const HIGHEST: u32 = 65_535;

/// The numbers of a list such as `0-3,6`; an empty text is an empty list.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last > HIGHEST {
            return None;
        }
        numbers.extend(first..=last);
        if numbers.len() > HIGHEST as usize + 1 {
            return None; // The kernel names no number twice.
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_what_is_none_is_refused() {
        assert_eq!(parse_list("0-2,6\n"), Some(vec![0, 1, 2, 6]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list(&"0-65535,".repeat(1000)), None, "more than there are");
        assert_eq!(parse_list("0-39993,0-39993"), None, "more than there are");
        for bad in ["a", "0-x", "1-", "-1", "1-99999999"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }
}
