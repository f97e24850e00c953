//! A subnet behind the sockets of ibsim: programs with `libumad2sim.so` preloaded attach to hosts.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::{Duration, Instant as Clock};

use feroce_subnet::{MadPacket, Net, Output, PortRef, Subnet};
use feroce_train::Instant;
use feroce_wire::mad::{Class, MAD_LEN, MadHeader, Method, PkeyTable};
use feroce_wire::{Lid, Pkey, Qkey, Qpn};

/// A control message: magic, client, type, length, 64 bytes of data.
const CONTROL_LEN: usize = 80;
/// A datagram: LIDs, queue pairs, status, padding, length, 256 bytes.
const REQUEST_LEN: usize = 288;
const MAD_AT: usize = 32;
const STATUS_AT: usize = 16;
/// How a datagram says that it was not answered.
const TIMED_OUT: u32 = 110;

/// How long no program asks for anything before it may have to be woken.
const QUIET: Duration = Duration::from_millis(100);
/// Where a transaction has the number of the program.
const CLIENT_SHIFT: u32 = 48;

mod control {
    pub(super) const ERROR: u32 = 0;
    pub(super) const CONNECT: u32 = 1;
    pub(super) const DISCONNECT: u32 = 2;
    pub(super) const GET_VENDOR: u32 = 4;
    pub(super) const GET_NODEINFO: u32 = 7;
    pub(super) const GET_PORTINFO: u32 = 8;
    pub(super) const SET_ISSM: u32 = 9;
    pub(super) const GET_PKEYS: u32 = 10;
}

struct Client {
    port: PortRef,
    is_sm: bool,
    socket: UnixDatagram,
    /// The last datagram that was sent to it.
    last: Option<[u8; REQUEST_LEN]>,
}

/// A subnet behind the sockets of ibsim.
pub(crate) struct Simulator {
    pub(crate) name: String,
    pub(crate) subnet: Subnet,
    control: UnixDatagram,
    clients: BTreeMap<u32, Client>,
    started: Clock,
    /// When there was something to do.
    was_busy_at: Clock,
}

fn bind(name: &str) -> UnixDatagram {
    // ibsim counts the zero at the end of its names.
    let address = SocketAddr::from_abstract_name(format!("{name}\0")).expect("a short name");
    let socket = UnixDatagram::bind_addr(&address).expect("a free name");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

impl Simulator {
    pub(crate) fn new(name: &str, net: &str) -> Self {
        Self {
            name: name.to_owned(),
            subnet: Subnet::new(&Net::parse(net).expect("a topology")),
            control: bind(&format!("{name}:ctl")),
            clients: BTreeMap::new(),
            started: Clock::now(),
            was_busy_at: Clock::now(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Serves what there is; returns whether there was anything.
    fn serve(&mut self) -> bool {
        let mut was_busy = false;
        let mut message = [0; CONTROL_LEN];
        while let Ok((len, from)) = self.control.recv_from(&mut message) {
            assert_eq!(len, CONTROL_LEN);
            self.control(&mut message);
            let _ = self.control.send_to_addr(&message, &from);
            was_busy = true;
        }
        let ids: Vec<u32> = self.clients.keys().copied().collect();
        for id in ids {
            let mut request = [0; REQUEST_LEN];
            while let Some(client) = self.clients.get(&id)
                && client.socket.recv(&mut request).is_ok()
            {
                let port = client.port;
                self.request(id, port, &request);
                was_busy = true;
            }
        }
        if self.subnet.poll_timeout().is_some_and(|at| at <= self.now()) {
            self.subnet.handle_timeout(self.now());
            self.hand_out();
        }
        if was_busy {
            self.was_busy_at = Clock::now();
        } else if self.was_busy_at.elapsed() > QUIET {
            self.wake();
        }
        was_busy
    }

    /// Sends again, once, what was sent last. `libumad2sim.so` signals its condition variable
    /// without the mutex, so that a program that was about to wait sleeps on although a datagram
    /// has arrived; the second one wakes it, and has no meaning by itself.
    fn wake(&mut self) {
        for client in self.clients.values_mut() {
            if let Some(message) = client.last.take() {
                let _ = client.socket.send(&message);
            }
        }
    }

    /// Serves until a condition holds, which is looked at now and then.
    pub(crate) fn serve_until(&mut self, mut is_over: impl FnMut(&Self) -> bool) {
        let mut looked = Clock::now();
        loop {
            if !self.serve() {
                thread::sleep(Duration::from_micros(100));
            }
            if looked.elapsed() > Duration::from_millis(5) {
                if is_over(self) {
                    return;
                }
                looked = Clock::now();
            }
        }
    }

    fn control(&mut self, message: &mut [u8; CONTROL_LEN]) {
        let word = |at: usize| u32::from_le_bytes(message[at..at + 4].try_into().expect("four"));
        let (id, kind) = (word(4), word(8));
        let port = self.clients.get(&id).map(|client| client.port);
        let mut data: [u8; 64] = message[16..].try_into().expect("64 bytes");
        let reply = match (kind, port) {
            (control::CONNECT, _) => self.connect(word(16), &mut data),
            (control::DISCONNECT, _) => self.clients.remove(&id).map(drop),
            (control::GET_VENDOR, Some(_)) => {
                data.fill(0);
                Some(())
            }
            (control::GET_NODEINFO, Some(at)) => {
                let mut info = *self.subnet.nodes()[at.node].info();
                info.local_port = at.port;
                info.port_guid = self.subnet.port(at).expect("a port").guids()[0];
                data[..40].copy_from_slice(&info.to_bytes());
                Some(())
            }
            (control::GET_PORTINFO, Some(at)) => {
                let mut info = *self.subnet.port(at).expect("a port").info();
                info.local_port = at.port;
                data = info.to_bytes();
                Some(())
            }
            (control::GET_PKEYS, Some(at)) => {
                let keys = self.subnet.port(at).expect("a port").pkeys();
                data = PkeyTable { keys: keys[..32].try_into().expect("32") }.to_bytes();
                Some(())
            }
            (control::SET_ISSM, Some(at)) => {
                let is_sm = data[0] != 0;
                self.clients.entry(id).and_modify(|client| client.is_sm = is_sm);
                self.subnet.set_is_sm(self.now(), at, is_sm);
                self.hand_out();
                Some(())
            }
            _ => None,
        };
        if reply.is_none() {
            message[8..12].copy_from_slice(&control::ERROR.to_le_bytes());
        }
        message[16..].copy_from_slice(&data);
    }

    /// A program attaches to the host that it names.
    fn connect(&mut self, process: u32, data: &mut [u8; 64]) -> Option<()> {
        let name = data[12..44].split(|byte| *byte == 0).next()?;
        let name = std::str::from_utf8(name).ok()?;
        let node = self.subnet.nodes().iter().position(|node| node.name() == name)?;
        let id = (0..).find(|id| !self.clients.contains_key(id))?;
        let socket = bind(&format!("{}:out{id}", self.name));
        let peer = SocketAddr::from_abstract_name(format!("{}:in{process}\0", self.name));
        socket.connect_addr(&peer.ok()?).ok()?;
        data[..4].copy_from_slice(&id.to_le_bytes());
        self.clients.insert(
            id,
            Client { port: PortRef { node, port: 1 }, is_sm: false, socket, last: None },
        );
        Some(())
    }

    fn request(&mut self, id: u32, at: PortRef, request: &[u8; REQUEST_LEN]) {
        let mut mad: [u8; MAD_LEN] = request[MAD_AT..].try_into().expect("a datagram");
        let (mut header, _) = MadHeader::parse(&mad).expect("a header");
        if !Method(header.method).is_response() {
            // The answer will find the program by the upper bits of its transaction.
            header.transaction |= u64::from(id) << CLIENT_SHIFT;
            header.emit(mad.first_chunk_mut().expect("a header"));
        }
        let dlid = Lid(u16::from_be_bytes([request[0], request[1]]));
        let own = self.subnet.port(at).expect("a port").info().lid;
        let is_directed = header.class == Class::SUBNET_DIRECTED.0;
        let qpn = if Class(header.class).is_subnet() { Qpn::QP0 } else { Qpn::QP1 };
        let packet = MadPacket {
            slid: if is_directed { Lid::PERMISSIVE } else { own },
            dlid,
            sl: 0,
            pkey: Pkey::DEFAULT,
            src_qpn: qpn,
            dst_qpn: qpn,
            qkey: Qkey(0x8001_0000),
            gids: None,
            mad,
        };
        self.subnet.send(self.now(), at, packet);
        let has_answer = self.hand_out();
        if !has_answer && matches!(Method(header.method), Method::GET | Method::SET) {
            let mut reply = *request;
            reply[STATUS_AT..STATUS_AT + 4].copy_from_slice(&TIMED_OUT.to_be_bytes());
            let _ = self.clients[&id].socket.send(&reply);
        }
    }

    /// The program behind a port that takes a packet: the one that waits for it, or the subnet
    /// manager.
    fn client(&mut self, at: PortRef, packet: &MadPacket) -> Option<&mut Client> {
        let (header, _) = MadHeader::parse(&packet.mad).ok()?;
        if Method(header.method).is_response() {
            let id = u32::try_from(header.transaction >> CLIENT_SHIFT).ok()?;
            return self.clients.get_mut(&id).filter(|client| client.port == at);
        }
        self.clients.values_mut().find(|client| client.port == at && client.is_sm)
    }

    /// Gives programs what the subnet has for them; returns whether there was anything.
    pub(crate) fn hand_out(&mut self) -> bool {
        let mut has_any = false;
        while let Some(output) = self.subnet.poll_output() {
            let Output::Received(at, packet) = output else {
                continue;
            };
            has_any = true;
            match self.client(at, &packet) {
                Some(client) => client.send(&packet),
                None => self.subnet.refuse(self.now(), at, &packet),
            }
        }
        has_any
    }
}

impl Client {
    fn send(&mut self, packet: &MadPacket) {
        let mut message = [0; REQUEST_LEN];
        message[..2].copy_from_slice(&packet.dlid.0.to_be_bytes());
        message[4..6].copy_from_slice(&packet.slid.0.to_be_bytes());
        message[8..12].copy_from_slice(&packet.dst_qpn.get().to_be_bytes());
        message[12..16].copy_from_slice(&packet.src_qpn.get().to_be_bytes());
        message[24..32].copy_from_slice(&(MAD_LEN as u64).to_be_bytes());
        message[MAD_AT..].copy_from_slice(&packet.mad);
        while self.socket.send(&message).is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            thread::yield_now();
        }
        self.last = Some(message);
    }
}
