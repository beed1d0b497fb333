//! The key of a connection in the table.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Client and server, each with address and port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub server: (IpAddr, u16),
    pub client: (IpAddr, u16),
}

/// Hashes few large words, because it is done for each packet. The table's hasher has a secret seed.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.server.1) << 16 | u64::from(self.client.1);
        match (self.server.0, self.client.0) {
            (IpAddr::V4(server), IpAddr::V4(client)) => {
                state.write_u64(u64::from(server.to_bits()) << 32 | u64::from(client.to_bits()));
            }
            (server, client) => {
                for address in [server, client] {
                    state.write_u128(match address {
                        IpAddr::V4(address) => u128::from(address.to_bits()),
                        IpAddr::V6(address) => address.to_bits(),
                    });
                }
            }
        }
        state.write_u64(ports);
    }
}
