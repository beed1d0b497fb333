//! Route classes: groups of requests with figures of their own, so that expensive and cheap pages are kept apart.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most route classes, because each keeps histograms of its own.
pub const MOST_ROUTES: usize = 16;

/// Bytes of a path that are compared.
const LONGEST_PATH: usize = 1_024;

/// A route class: a name and the pattern of the paths that belong to it, where `*` stands for any bytes. For memcached
/// the path is the first key. Written as in `login=/account/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Its name in the output.
    pub name: String,
    /// The pattern of a path without the query.
    pub pattern: String,
}

/// A text that is no route class.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0:?} is not NAME=PATTERN, as in `login=/account/*`; the name {OTHER:?} is taken")]
pub struct RouteError(String);

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
        match text.split_once('=') {
            Some((name, pattern)) if !name.is_empty() && !pattern.is_empty() && name != OTHER => {
                Ok(Self { name: name.to_owned(), pattern: pattern.to_owned() })
            }
            _ => Err(RouteError(text.to_owned())),
        }
    }
}

impl<'de> Deserialize<'de> for Route {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}={}", self.name, self.pattern))
    }
}

/// The name of the class of requests that no pattern matches.
pub const OTHER: &str = "other";

/// The index of the first route whose pattern matches the target of a request; `routes.len()` if there is none.
pub fn classify(routes: &[Route], target: &[u8]) -> u8 {
    let path = path(target);
    let index = routes.iter().position(|route| matches(route.pattern.as_bytes(), path));
    index.unwrap_or(routes.len()) as u8
}

/// The path of a target in origin form (`/a?b`) or absolute form (`http://host/a`).
fn path(target: &[u8]) -> &[u8] {
    let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    let path = &target[..end.min(LONGEST_PATH)];
    match memchr::memmem::find(path, b"://") {
        Some(scheme) if !path.starts_with(b"/") => {
            let authority = &path[scheme + 3..];
            memchr::memchr(b'/', authority).map_or(b"/", |slash| &authority[slash..])
        }
        _ => path,
    }
}

/// Whether a pattern matches a text. The search goes back to the last `*` only, so its time grows with the product of
/// both lengths at most.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        match (pattern.get(p), back) {
            (Some(b'*'), _) => {
                back = Some((p, t));
                p += 1;
            }
            (Some(byte), _) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            (_, Some((star, from))) => {
                back = Some((star, from + 1));
                p = star + 1;
                t = from + 1;
            }
            _ => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(target: &str) -> u8 {
        let routes: Vec<Route> = ["start=/", "pictures=*.jpg", "shop=/shop/*/buy"]
            .iter()
            .map(|text| text.parse().expect("a route"))
            .collect();
        classify(&routes, target.as_bytes())
    }

    #[test]
    fn the_first_pattern_that_matches_the_whole_path_counts() {
        assert_eq!([class("/"), class("/?q=1"), class("/x.jpg?small"), class("/shop/7/buy")], [0, 0, 1, 2]);
        assert_eq!([class("/shop/7/buyer"), class(""), class("/index")], [3, 3, 3]);
        assert_eq!([class("http://host.example/"), class("http://host.example"), class("/a?u=http://b/")], [0, 0, 3]);
    }

    #[test]
    fn stars_match_anything_and_cost_little() {
        assert!(matches(b"*", b"") && matches(b"a*b*c", b"a--b-b-c") && !matches(b"a*b*c", b"a--c-b"));
        let text = [b'a'; LONGEST_PATH];
        assert!(!matches(b"*a*a*a*a*a*a*a*b", &text));
    }

    #[test]
    fn wrong_routes_are_refused() {
        for text in ["", "=", "a=", "=/a", "/a", "other=/a"] {
            assert!(text.parse::<Route>().is_err(), "{text}");
        }
    }
}
