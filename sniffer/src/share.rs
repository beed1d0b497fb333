//! The share of the connections that is followed, and the choice of these connections.
//!
//! A hash of both addresses and both ports decides. It is the same for both directions, so a connection is followed
//! completely or not at all. The kernel's filter computes it (`ConnectionHash::filter`, in the language of libpcap's
//! filters), and the tracker computes it again (`ConnectionHash::hash`), because packets of the earlier share may wait
//! in the ring.
//!
//! The hash is a product of two linear functions, whose upper bits go through a third one. Its last step adds a secret
//! number, so the probability that a connection is followed is exactly the share.

use std::fmt;
use std::net::IpAddr;

use crate::key::Key;

/// Halvings of the smallest share.
const MOST_HALVINGS: u8 = 10;

/// A share of the connections: all, a half, a quarter, down to 1/1024. Each share includes the connections of all
/// smaller ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    halvings: u8,
}

impl Share {
    /// All connections.
    pub const ALL: Share = Share { halvings: 0 };

    /// Half of this share; the smallest stays as it is.
    pub fn halved(self) -> Share {
        Share { halvings: (self.halvings + 1).min(MOST_HALVINGS) }
    }

    /// Twice this share; the share of all connections stays as it is.
    pub fn doubled(self) -> Share {
        Share { halvings: self.halvings.saturating_sub(1) }
    }

    /// The share of the connections, 0 to 1.
    pub fn as_f64(self) -> f64 {
        1.0 / f64::from(self.weight())
    }

    /// The number of connections for which one of the sample stands.
    pub fn weight(self) -> u32 {
        1 << self.halvings
    }

    /// Whether it is larger than another.
    pub fn exceeds(self, other: Share) -> bool {
        self.halvings < other.halvings
    }

    /// The limit below which the hash of a connection in the sample is; `None` when all connections are followed.
    fn limit(self) -> Option<u32> {
        (self.halvings > 0).then(|| 1 << (32 - u32::from(self.halvings)))
    }
}

/// A fraction, as in `1/8`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Share::ALL { f.write_str("all") } else { write!(f, "1/{}", self.weight()) }
    }
}

/// A linear function of the addresses' words and of the ports, each summed over both ends.
#[derive(Debug, Clone, Copy)]
struct Linear {
    words: [u32; 4],
    ports: u32,
    offset: u32,
}

impl Linear {
    fn value(&self, words: &[u32], ports: u32) -> u32 {
        let products = words.iter().zip(self.words).map(|(word, factor)| word.wrapping_mul(factor));
        products.fold(self.offset.wrapping_add(ports.wrapping_mul(self.ports)), u32::wrapping_add)
    }

    /// The hash function in the language of libpcap's filters.
    fn expression(&self, words: &[String], ports: &str) -> String {
        let products = words.iter().zip(self.words).map(|(word, factor)| format!("({word}) * {factor}"));
        let products: Vec<String> = products.collect();
        format!("{} + ({ports}) * {} + {}", products.join(" + "), self.ports, self.offset)
    }
}

/// A hash function for connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionHash {
    first: Linear,
    second: Linear,
    factor: u32,
    offset: u32,
}

impl ConnectionHash {
    /// The hash function of a seed. Somebody who knows the seed can open connections that are always in the sample, or
    /// never.
    pub fn new(seed: u64) -> ConnectionHash {
        let mut state = seed;
        let mut linear = || Linear {
            words: std::array::from_fn(|_| random(&mut state) | 1),
            ports: random(&mut state) | 1,
            offset: random(&mut state),
        };
        let (first, second) = (linear(), linear());
        ConnectionHash { first, second, factor: random(&mut state) | 1, offset: random(&mut state) }
    }

    /// Whether a connection is in the sample.
    pub fn includes(&self, key: &Key, share: Share) -> bool {
        share.limit().is_none_or(|limit| self.hash(key) < limit)
    }

    fn hash(&self, key: &Key) -> u32 {
        let ports = u32::from(key.client.1) + u32::from(key.server.1);
        match (key.client.0, key.server.0) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                self.mix(&[client.to_bits().wrapping_add(server.to_bits())], ports)
            }
            (client, server) => {
                let (client, server) = (words(client), words(server));
                let sums: [u32; 4] = std::array::from_fn(|at| client[at].wrapping_add(server[at]));
                self.mix(&sums, ports)
            }
        }
    }

    fn mix(&self, words: &[u32], ports: u32) -> u32 {
        let product = self.first.value(words, ports).wrapping_mul(self.second.value(words, ports) | 1);
        (product >> 15).wrapping_mul(self.factor).wrapping_add(self.offset)
    }

    /// A filter of libpcap that lets TCP of the sample pass, over IPv4 and directly behind the header of IPv6; `None`
    /// when all connections are followed.
    pub fn filter(&self, share: Share) -> Option<String> {
        let limit = share.limit()?;
        let below = |words: &[String], ports: &str| {
            let (first, second) = (self.first.expression(words, ports), self.second.expression(words, ports));
            format!("(((({first}) * (({second}) | 1)) >> 15) * {} + {}) < {limit}", self.factor, self.offset)
        };
        let v4 = below(&["ip[12:4] + ip[16:4]".to_owned()], "tcp[0:2] + tcp[2:2]");
        let v6: [String; 4] = std::array::from_fn(|at| format!("ip6[{}:4] + ip6[{}:4]", 8 + 4 * at, 24 + 4 * at));
        let v6 = below(&v6, "ip6[40:2] + ip6[42:2]");
        Some(format!("((ip and {v4}) or (ip6 and {v6}))"))
    }
}

fn words(address: IpAddr) -> [u32; 4] {
    let bits = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    std::array::from_fn(|at| (bits >> (96 - 32 * at)) as u32)
}

/// The next number of SplitMix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*, OOPSLA 2014).
fn random(state: &mut u64) -> u32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(halvings: u8) -> Share {
        (0..halvings).fold(Share::ALL, |share, _| share.halved())
    }

    fn key(client: (IpAddr, u16), server: (IpAddr, u16)) -> Key {
        Key { client, server }
    }

    #[test]
    fn shares_are_halved_and_doubled_within_their_bounds() {
        assert_eq!(ConnectionHash::new(1).filter(Share::ALL), None, "no filter computes a hash for nothing");
        assert_eq!(
            (Share::ALL.as_f64(), Share::ALL.doubled(), Share::ALL.to_string()),
            (1.0, Share::ALL, "all".into())
        );
        assert_eq!((share(3).as_f64(), share(3).doubled(), share(3).to_string()), (0.125, share(2), "1/8".into()));
        assert_eq!((share(200).weight(), share(2).exceeds(share(3)), share(3).exceeds(share(3))), (1024, true, false));
    }

    /// Populations of connections with regular addresses and ports, as real ones have.
    fn populations() -> Vec<Vec<Key>> {
        let server: (IpAddr, u16) = ([10, 0, 0, 2].into(), 80);
        let one_client = |step: u16| (0..1_000).map(move |n| key(([10, 0, 0, 9].into(), 32_768 + step * n), server));
        let many_clients = (0..1_000u32).map(|n| key((IpAddr::V4((0x0a00_0100 + n).into()), 50_000), server));
        let server: (IpAddr, u16) = (IpAddr::V6("fd00::2".parse().expect("an address")), 443);
        let v6 = (0..1_000u128).map(|n| {
            let net = 0x2001_0db8_0000_0000_0000_0000_0000_0001 + ((n % 50) << 64);
            key((IpAddr::V6(net.into()), 40_000 + (n / 50) as u16), server)
        });
        vec![one_client(1).collect(), one_client(2).collect(), many_clients.collect(), v6.collect()]
    }

    #[test]
    fn samples_have_the_size_and_the_spread_of_random_ones() {
        const SEEDS: u64 = 400;
        for (number, keys) in populations().iter().enumerate() {
            for share in [share(1), share(3), share(5)] {
                let sizes: Vec<f64> = (0..SEEDS)
                    .map(|seed| {
                        let hash = ConnectionHash::new(seed);
                        keys.iter().filter(|key| hash.includes(key, share)).count() as f64
                    })
                    .collect();
                let expected = keys.len() as f64 * share.as_f64();
                let binomial = expected * (1.0 - share.as_f64());
                let mean = sizes.iter().sum::<f64>() / SEEDS as f64;
                let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / (SEEDS - 1) as f64;
                let error = (mean - expected) / (binomial / SEEDS as f64).sqrt();
                assert!(error.abs() < 4.0, "population {number}, {share}: {mean} instead of {expected}");
                assert!(variance / binomial < 1.5, "population {number}, {share}: {} times", variance / binomial);
            }
        }
    }

    #[test]
    fn both_directions_hash_alike_and_samples_are_nested() {
        for (seed, keys) in populations().iter().enumerate() {
            let hash = ConnectionHash::new(seed as u64);
            for connection in keys {
                assert_eq!(hash.hash(connection), hash.hash(&key(connection.server, connection.client)));
                for halvings in 0..MOST_HALVINGS {
                    let [larger, smaller] = [share(halvings), share(halvings + 1)];
                    assert!(!hash.includes(connection, smaller) || hash.includes(connection, larger));
                }
            }
        }
    }
}
