//! What the sniffer is to watch, as it stands in the configuration: ports with their protocols, and route classes.

use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use slackwater_sniffer::{PROTOCOLS, Protocol, Route, TrackerSettings};

/// A TCP port of the web server: `80`, or `"8443:unknown"` with its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u16,
    /// A name of the sniffer's table; `None`: this port's usual one.
    pub protocol: Option<&'static str>,
}

/// A text that is no [`Port`].
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Its number is none of a port.
    #[error("{0:?} is no port: 1 to 65535, as in 80 or \"11211:memcached\"")]
    Number(String),
    /// The sniffer has no such protocol.
    #[error("{name:?} is no protocol known here: {known}")]
    Protocol {
        /// What was named.
        name: String,
        /// The names that there are.
        known: String,
    },
}

impl FromStr for Port {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Port, PortError> {
        let (number, protocol) = match text.split_once(':') {
            Some((number, protocol)) => (number, Some(protocol)),
            None => (text, None),
        };
        let number = number.parse().ok().filter(|number| *number > 0);
        let found = |name: &str| Protocol::named(name).map(|protocol| protocol.name);
        let known = || PROTOCOLS.iter().map(|protocol| protocol.name).collect::<Vec<_>>().join(", ");
        let found =
            |name: &str| found(name).ok_or_else(|| PortError::Protocol { name: name.to_owned(), known: known() });
        Ok(Port {
            number: number.ok_or_else(|| PortError::Number(text.to_owned()))?,
            protocol: protocol.map(found).transpose()?,
        })
    }
}

/// A port as it stands in the configuration.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a port, as in 80 or \"11211:memcached\"")]
enum Written {
    Number(i64),
    Text(String),
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Port, D::Error> {
        let port = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string().parse(),
            Written::Text(text) => text.parse(),
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

/// A route class: `"search=/search*"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteClass(pub Route);

impl<'de> Deserialize<'de> for RouteClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RouteClass, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(RouteClass).map_err(D::Error::custom)
    }
}

impl Serialize for RouteClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}={}", self.0.name, self.0.pattern))
    }
}

/// The tracker's settings.
pub fn tracker_settings(ports: &[Port], routes: &[RouteClass]) -> TrackerSettings {
    TrackerSettings {
        ports: ports.iter().map(|port| port.number).collect(),
        protocols: ports.iter().filter_map(|port| Some((port.number, port.protocol?))).collect(),
        routes: routes.iter().map(|RouteClass(route)| route.clone()).collect(),
        ..TrackerSettings::default()
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
        let settings = tracker_settings(&ports, &[RouteClass("search=/search*".parse().expect("a route"))]);
        assert_eq!((settings.ports, settings.protocols), (vec![80, 8080, 11211], vec![(11211, "memcached")]));
        assert_eq!(settings.routes[0].name, "search");
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
            let error = serde_json::from_str::<Port>(text).expect_err("refused").to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
