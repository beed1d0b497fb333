//! Response times of web servers from the packets on the wire.
//!
//! # Layout, in the order that a packet takes
//! - `capture`: from an interface (`Live`, through libpcap), a file (`read_file`) or a pipe (`read_stream`);
//! - `privileges`: given up once the capture is open;
//! - `link`: link layers and tunnels; `segment`: IP and TCP heads of one packet;
//! - `tracker`: the table of connections (`key`: their names; `closed`: those that ended), bounded in entries and bytes;
//! - `share`: which connections are looked at when not all can be; `budget`: how many; `sampling`: how much they count;
//!   `spread`: how sure that is;
//! - `servers`: a tracker for each of several servers;
//! - `stream`: order, retransmissions and holes of one connection (`half`: of one direction);
//! - `preamble`: what a balancer says before the first request; `foreign`: whether the server speaks what its port
//!   is taken for (`answers`: of all of a port's servers);
//! - `protocol`: the table of protocols; `port`: which one a port speaks; `piece`: the bytes that a protocol gets;
//! - `http1`, `memcached`: where messages start and end, and which response answers which request (`direction`: what they
//!   share about one direction of a connection); `unknown`: turns;
//! - `routes`: which requests belong together;
//! - `ledger`: counts and histograms; `buckets`: the coarse ones of monitoring systems; `figures`: their results;
//!   `merge`: histograms of several places.
//!
//! Nothing here reads a clock or trusts a byte: packets bring their time, and damaged ones are counted.

mod answers;
mod buckets;
mod budget;
mod capture;
mod closed;
mod direction;
mod figures;
mod foreign;
mod half;
mod http1;
mod key;
mod ledger;
mod link;
mod memcached;
mod merge;
mod method;
mod piece;
mod port;
mod preamble;
mod privileges;
mod protocol;
mod recorder;
mod routes;
mod sampling;
mod segment;
mod servers;
mod settings;
mod share;
mod spread;
mod stream;
mod tracker;
mod unknown;
mod waiting;

pub use answers::ForeignPort;
pub use buckets::{BUCKET_BOUNDS_S, BUCKETS_OF_CLASS, Buckets};
pub use budget::{CpuBudget, LEAST_CONNECTIONS};
pub use capture::{CaptureError, Live, LiveSettings, read_file, read_stream};
pub use figures::{Counts, Details, Exchange, Period, RouteFigures, Sizes, StatusClass, StatusClasses, Summary, Times};
pub use merge::{MergeError, merge};
pub use method::Method;
pub use port::{Port, PortError, known_protocol};
pub use privileges::{PrivilegeError, drop_privileges, keep_privileges, user_exists};
pub use protocol::{PROTOCOLS, Protocol};
pub use routes::{MOST_ROUTES, Route, RouteError};
pub use segment::Packet;
pub use servers::Servers;
pub use settings::TrackerSettings;
pub use share::Share;
pub use tracker::Tracker;
