//! The kernel's filter, which decides which packets it hands over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use pcap::BpfProgram;

use super::CaptureError;

/// Replaces the present filter without losing a packet; `pcap_setfilter` would drop the packets that arrive meanwhile.
pub fn attach(socket: RawFd, program: &BpfProgram) -> Result<(), CaptureError> {
    let instructions = program.get_instructions();
    let length = u16::try_from(instructions.len()).expect("libpcap makes no longer filters than the kernel takes");
    let filter = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: both instructions are of one layout, that of the kernel; it copies them and keeps no pointer.
    let failed = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    } != 0;
    if failed {
        let error = std::io::Error::last_os_error();
        return Err(CaptureError::Broken(format!("filter of {length} instructions: {error}")));
    }
    Ok(())
}

/// Most servers that the filter names by their addresses. The kernel compares them one after the other, and takes 4,096
/// instructions at most.
const MOST_NAMED: usize = 32;

/// Segments that a server's figures need: those with bytes, and those that open or end a connection. Acknowledgements
/// alone are a third of all packets; what they acknowledge, the next bytes in their direction acknowledge too.
const WITH_BYTES: &str = "((ip and (tcp[13] & 7 != 0 or ip[2:2] - ((ip[0] & 15) << 2) - ((tcp[12] & 240) >> 2) != 0)) \
     or (ip6 and (ip6[53] & 7 != 0 or ip6[4:2] - ((ip6[52] & 240) >> 2) != 0)))";

/// Segments from and to these ports, in the language of libpcap's filters.
pub fn of_ports(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(|port| format!("port {port}")).collect();
    format!("({})", ports.join(" or "))
}

/// Segments with bytes from and to these servers; where they are many, from and to their ports.
pub fn of_servers(servers: &[SocketAddr]) -> String {
    let mut ports: BTreeMap<IpAddr, Vec<u16>> = BTreeMap::new();
    for server in servers {
        ports.entry(server.ip().to_canonical()).or_default().push(server.port());
    }
    let named = ports.iter().map(|(address, ports)| {
        let family = if address.is_ipv4() { "ip" } else { "ip6" };
        format!("({family} host {address} and {})", of_ports(ports))
    });
    let all: Vec<u16> = servers.iter().map(SocketAddr::port).collect::<BTreeSet<_>>().into_iter().collect();
    let places = if servers.len() > MOST_NAMED { of_ports(&all) } else { named.collect::<Vec<_>>().join(" or ") };
    format!("({places}) and {WITH_BYTES}")
}

/// The kernel's filter for the wanted segments of TCP: with VLANs, and without them for link layers that have none.
pub fn filters(wanted: &str) -> [String; 2] {
    let plain = filter(wanted);
    [format!("{plain} or (vlan and ({plain} or (vlan and {plain})))"), plain]
}

/// Tunnels do not pass, because their content is captured on their own interface. The filter finds TCP over IPv6 only
/// directly behind the IP header, so all packets with extension headers pass, and are examined here. So do all
/// fragments of TCP, which have no ports and are counted.
fn filter(wanted: &str) -> String {
    let extended: Vec<String> = EXTENSIONS.iter().map(|number| format!("ip6[6] = {number}")).collect();
    let extended = extended.join(" or ");
    format!("((tcp and {wanted}) or (ip proto 6 and ip[6:2] & 0x1fff != 0) or (ip6 and ({extended})))")
}

/// Heads between IPv6 and TCP: hop-by-hop, routing, fragment, authentication, destination.
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::link::{self, LINK_TYPES};
    use crate::segment::Packet;
    use crate::share::{ConnectionHash, Share};
    use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader, VlanId};
    use pcap::{Capture, Linktype};

    fn compile(link_type: i32, expression: &str) -> BpfProgram {
        let dead = Capture::dead(Linktype(link_type)).expect("a capture without a source");
        dead.compile(expression, true).expect("the filter is right")
    }

    #[test]
    fn the_filter_names_all_ports() {
        assert!(filter(&of_ports(&[80, 8080])).contains("(tcp and (port 80 or port 8080))"));
    }

    /// A segment of 10.0.0.1 and 10.0.0.2, or of fd00::1 and fd00::2, in a frame of Ethernet.
    fn frame(is_v6: bool, ends: [(u8, u16); 2], flags: &str, bytes: &[u8]) -> Vec<u8> {
        let [source, destination] = ends;
        let mut tcp = TcpHeader::new(source.1, destination.1, 1, 1_000);
        (tcp.syn, tcp.fin, tcp.rst) = (flags.contains('S'), flags.contains('F'), flags.contains('R'));
        (tcp.ack, tcp.psh) = (flags.contains('A'), true);
        let v6 = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let step = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let mut frame = Vec::new();
        let wrapped = if is_v6 {
            step.ipv6(v6(source.0), v6(destination.0), 64)
        } else {
            step.ipv4([10, 0, 0, source.0], [10, 0, 0, destination.0], 64)
        };
        wrapped.tcp_header(tcp).write(&mut frame, bytes).expect("memory takes everything");
        frame.resize(frame.len().max(60), 0);
        frame
    }

    #[test]
    fn of_servers_only_segments_with_bytes_or_ends_pass() {
        let addresses = ["10.0.0.2:80", "[fd00::2]:80", "[::ffff:10.0.0.3]:81"];
        let mut servers: Vec<SocketAddr> = addresses.map(|text| text.parse().expect("an address")).into();
        let [with_vlans, _] = filters(&of_servers(&servers));
        let program = compile(link::ETHERNET, &with_vlans);
        let passes = |is_v6, ends, flags, bytes| program.filter(&frame(is_v6, ends, flags, bytes));
        for is_v6 in [false, true] {
            let there = [(1, 40_000), (2, 80)];
            for ends in [there, [there[1], there[0]]] {
                for (flags, bytes, expected) in
                    [("A", &b"x"[..], true), ("A", b"", false), ("S", b"", true), ("FA", b"", true), ("R", b"", true)]
                {
                    assert_eq!(passes(is_v6, ends, flags, bytes), expected, "{is_v6} {ends:?} {flags} {bytes:?}");
                }
            }
            assert!(!passes(is_v6, [(1, 40_000), (4, 80)], "A", b"x"), "another address");
            assert!(!passes(is_v6, [(1, 40_000), (2, 82)], "A", b"x"), "another port");
        }
        assert!(passes(false, [(1, 40_000), (3, 81)], "A", b"x"), "an IPv4 address in the form of IPv6");
        servers.extend((0..1_000u16).map(|number| SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 80))));
        let [with_vlans, _] = filters(&of_servers(&servers));
        let program = compile(link::ETHERNET, &with_vlans);
        assert!(program.get_instructions().len() < 1_000);
        assert!(program.filter(&frame(false, [(1, 40_000), (4, 80)], "A", b"x")), "many servers: their ports");
        servers.truncate(MOST_NAMED);
        let [with_vlans, _] = filters(&of_servers(&servers));
        assert!(compile(link::ETHERNET, &with_vlans).get_instructions().len() < 2_000);
    }

    #[test]
    fn the_filter_lets_extension_heads_and_fragments_pass() {
        let program = compile(link::ETHERNET, &filter(&of_ports(&[80])));
        let mut v6 = vec![0u8; 14 + 40 + 8 + 20];
        v6[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        for (next, passes) in [(60, true), (0, true), (44, true), (17, false), (6, false)] {
            v6[20] = next;
            assert_eq!(program.filter(&v6), passes, "next head {next}");
        }
        let mut v4 = vec![0u8; 14 + 40];
        v4[12..15].copy_from_slice(&[8, 0, 0x45]);
        v4[23] = 6;
        assert!(!program.filter(&v4), "port 0");
        v4[21] = 10;
        assert!(program.filter(&v4), "a later fragment");
        v4[23] = 17;
        assert!(!program.filter(&v4), "of UDP");
    }

    /// Numbers that are always the same ones (xorshift).
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 16) as u32
        }
    }

    /// A packet of TCP between any addresses and ports, one of them 80, behind the head of a link layer.
    fn random_packet(link_type: i32, dice: &mut Dice) -> Vec<u8> {
        let [mut source, mut destination] = [dice.roll() as u16, 80];
        if dice.roll().is_multiple_of(2) {
            (source, destination) = (destination, source);
        }
        let mut v4 = || dice.roll().to_be_bytes();
        let (from, to) = (v4(), v4());
        let mut v6 = || -> [u8; 16] { [v4(), v4(), v4(), v4()].concat().try_into().expect("16 bytes") };
        let (from_v6, to_v6) = (v6(), v6());
        let tcp = TcpHeader::new(source, destination, dice.roll(), 1_000);
        let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]);
        let vlan = |id| VlanId::try_new(id).expect("an id");
        let is_ethernet = link_type == link::ETHERNET;
        let mut frame = Vec::new();
        let write = |step: PacketBuilderStep<etherparse::IpHeaders>, frame: &mut Vec<u8>| {
            step.tcp_header(tcp.clone()).write(frame, b"GET / HTTP/1.1").expect("memory takes everything");
        };
        let is_v6 = dice.roll().is_multiple_of(2);
        match dice.roll() % 3 {
            1 if is_ethernet && is_v6 => write(ethernet().single_vlan(vlan(7)).ipv6(from_v6, to_v6, 64), &mut frame),
            1 if is_ethernet => write(ethernet().single_vlan(vlan(7)).ipv4(from, to, 64), &mut frame),
            2 if is_ethernet && is_v6 => {
                write(ethernet().double_vlan(vlan(7), vlan(8)).ipv6(from_v6, to_v6, 64), &mut frame);
            }
            2 if is_ethernet => write(ethernet().double_vlan(vlan(7), vlan(8)).ipv4(from, to, 64), &mut frame),
            _ if is_v6 => write(ethernet().ipv6(from_v6, to_v6, 64), &mut frame),
            _ => write(ethernet().ipv4(from, to, 64), &mut frame),
        }
        if !is_v6 && frame[12..14] == [8, 0] && dice.roll().is_multiple_of(2) {
            // An option of IP: three times no operation, and the end.
            frame.splice(34..34, [1, 1, 1, 0]);
            frame[14] = 0x46;
            let length = u16::from_be_bytes([frame[16], frame[17]]) + 4;
            frame[16..18].copy_from_slice(&length.to_be_bytes());
        }
        let ether_type = if is_v6 { [0x86, 0xdd] } else { [8, 0] };
        match link_type {
            link::ETHERNET => frame,
            link::SLL => [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], &ether_type[..], &frame[14..]].concat(),
            link::SLL2 => [&ether_type[..], &[0; 18], &frame[14..]].concat(),
            _ => frame[14..].to_vec(),
        }
    }

    #[test]
    fn the_kernels_filter_and_the_tracker_choose_the_same_connections() {
        let mut dice = Dice(0x2545_f491_4f6c_dd1d);
        for link_type in [link::ETHERNET, link::SLL, link::SLL2, link::RAW] {
            assert!(LINK_TYPES.contains(&link_type));
            for seed in 0..4 {
                let hash = ConnectionHash::new(seed);
                let mut share = Share::ALL;
                for _ in 0..4 {
                    share = share.halved();
                    let sample = hash.filter(share).expect("not all connections");
                    let [with_vlans, plain] = filters(&format!("{} and {sample}", of_ports(&[80, 8080])));
                    let expression = if link_type == link::ETHERNET { with_vlans } else { plain };
                    let program = compile(link_type, &expression);
                    assert!(program.get_instructions().len() < 1_000);
                    let mut passed = 0;
                    for number in 0..400 {
                        let bytes = random_packet(link_type, &mut dice);
                        let (time_ns, frame, original_length) = (0, 1, bytes.len() as u32);
                        let packet = Packet { time_ns, link_type, frame, original_length, bytes: &bytes };
                        let segment = packet.segment().expect("a segment");
                        let includes =
                            hash.includes(&Key { client: segment.source, server: segment.destination }, share);
                        assert_eq!(
                            program.filter(&bytes),
                            includes,
                            "packet {number} of link type {link_type}, {share}, seed {seed}: {bytes:02x?}"
                        );
                        passed += u32::from(includes);
                    }
                    assert!(passed > 0 && passed < 400, "{share}: {passed}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_ports_passes_whatever_the_share() {
        let hash = ConnectionHash::new(1);
        let share = (0..10).fold(Share::ALL, |share, _| share.halved());
        let sample = hash.filter(share).expect("not all connections");
        let program = compile(link::ETHERNET, &filter(&format!("{} and {sample}", of_ports(&[80]))));
        let mut fragment = vec![0u8; 14 + 40];
        fragment[12..15].copy_from_slice(&[8, 0, 0x45]);
        (fragment[21], fragment[23]) = (10, 6);
        assert!(program.filter(&fragment));
    }
}
