//! TCP ports of servers, each with the protocol that it speaks: `80`, or `11211:memcached`.

use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::protocol::{PROTOCOLS, Protocol};

/// A TCP port of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u16,
    /// A name of the table of protocols; `None`: the port's usual protocol.
    pub protocol: Option<&'static str>,
}

/// A text that is no [`Port`].
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages are the documentation.
pub enum PortError {
    #[error("{0:?} is no port: 1 to 65535, as in 80 or \"11211:memcached\"")]
    Number(String),
    #[error("{name:?} is no protocol known here: {known}")]
    Protocol { name: String, known: String },
}

impl FromStr for Port {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        let (number, protocol) = match text.split_once(':') {
            Some((number, protocol)) => (number, Some(protocol)),
            None => (text, None),
        };
        let number = number.parse().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| PortError::Number(text.to_owned()))?;
        Ok(Self { number, protocol: protocol.map(known_protocol).transpose()? })
    }
}

/// The name of a protocol, if the table of protocols has it.
pub fn known_protocol(name: &str) -> Result<&'static str, PortError> {
    let known = || PROTOCOLS.iter().map(|protocol| protocol.name).collect::<Vec<_>>().join(", ");
    let protocol = Protocol::named(name).map(|protocol| protocol.name);
    protocol.ok_or_else(|| PortError::Protocol { name: name.to_owned(), known: known() })
}

/// A port in a configuration file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a port, as in 80 or \"11211:memcached\"")]
enum PortValue {
    Number(i64),
    Text(String),
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let port = match PortValue::deserialize(deserializer)? {
            PortValue::Number(number) => number.to_string().parse(),
            PortValue::Text(text) => text.parse(),
        };
        port.map_err(D::Error::custom)
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.protocol {
            None => serializer.serialize_u16(self.number),
            Some(protocol) => serializer.serialize_str(&format!("{}:{protocol}", self.number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_or_words_and_keep_their_form() {
        let ports: Vec<Port> = serde_json::from_str("[80, \"8080\", \"11211:memcached\"]").expect("ports");
        let expected = [(80, None), (8080, None), (11211, Some("memcached"))];
        assert_eq!(ports, expected.map(|(number, protocol)| Port { number, protocol }));
        assert_eq!(serde_json::to_string(&ports).expect("JSON"), "[80,8080,\"11211:memcached\"]");
    }

    #[test]
    fn what_is_no_port_is_refused_in_words() {
        for (text, expected) in [
            ("0", "\"0\" is no port: 1 to 65535"),
            ("-1", "\"-1\" is no port"),
            ("65536", "\"65536\" is no port"),
            ("\"http\"", "\"http\" is no port"),
            ("\"80:smtp\"", "\"smtp\" is no protocol known here: http1, memcached, unknown"),
            ("true", "expected a port, as in 80"),
        ] {
            let error = serde_json::from_str::<Port>(text).expect_err("a refusal").to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
