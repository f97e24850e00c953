//! The side channel, over which the two ends of a pingpong exchange the addresses of their queue
//! pairs.
//!
//! The protocol on the TCP connection is byte for byte that of rdma-core's programs, so that either
//! end can be one of those on another kind of adapter. An address is a text of 51 characters and a
//! zero, `LID:QPN:PSN:GID` in hexadecimal. The client sends its addresses, the server connects its
//! queue pairs and answers with its own addresses, and the client sends `done` and a zero. Each
//! side sends one address; the shared-receive-queue program sends 256, of which those it does not
//! use are zeros.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use feroce::{Gid, Psn, Qpn};
use serde::Serialize;

/// Bytes of an address on the wire.
pub(super) const ADDRESS_LEN: usize = 52;

/// Addresses that the shared-receive-queue program exchanges, used or not.
pub(super) const SRQ_ADDRESSES: usize = 256;

/// The last message of the client.
const DONE: &[u8] = b"done\0";

/// Timeout for an answer of a connected peer, which only has to open its device.
const PATIENCE: Duration = Duration::from_secs(10);

/// The address of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Address {
    /// Local identifier; 0 on Ethernet.
    pub(super) lid: u16,
    /// Number of the queue pair.
    pub(super) qpn: Qpn,
    /// First PSN that it sends.
    pub(super) psn: Psn,
    /// Address of the port.
    pub(super) gid: Gid,
}

impl Address {
    /// The wire form.
    pub(super) fn emit(&self) -> [u8; ADDRESS_LEN] {
        let gid: String = self.gid.0.iter().map(|b| format!("{b:02x}")).collect();
        let (qpn, psn) = (self.qpn.get(), self.psn.get());
        let text = format!("{:04x}:{qpn:06x}:{psn:06x}:{gid}\0", self.lid);
        let mut bytes = [0; ADDRESS_LEN];
        bytes.copy_from_slice(text.as_bytes());
        bytes
    }

    /// Reads the wire form; fields may be shorter than we write them.
    pub(super) fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let wrong = || {
            let shown = String::from_utf8_lossy(bytes);
            format!("the peer does not speak pingpong: it sent {:?}", shown.trim_end_matches('\0'))
        };
        let end = bytes.iter().position(|&b| b == 0).with_context(wrong)?;
        let text = std::str::from_utf8(&bytes[..end]).with_context(wrong)?;
        let fields: Vec<&str> = text.split(':').collect();
        let [lid, qpn, psn, gid] = fields[..] else { bail!(wrong()) };
        ensure!(gid.len() == 32 && gid.is_ascii(), wrong());
        let number = |text: &str| u32::from_str_radix(text, 16).with_context(wrong);
        let mut raw = [0; 16];
        for (i, byte) in raw.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&gid[2 * i..2 * i + 2], 16).with_context(wrong)?;
        }
        let (qpn, psn) = (number(qpn)?, number(psn)?);
        ensure!(qpn <= 0xff_ffff && psn <= 0xff_ffff, wrong());
        Ok(Self {
            lid: u16::try_from(number(lid)?).with_context(wrong)?,
            qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            gid: Gid(raw),
        })
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut object = to.serialize_struct("Address", 4)?;
        object.serialize_field("lid", &self.lid)?;
        object.serialize_field("qpn", &self.qpn.get())?;
        object.serialize_field("psn", &self.psn.get())?;
        object.serialize_field("gid", &self.gid.to_string())?;
        object.end()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (qpn, psn) = (self.qpn.get(), self.psn.get());
        write!(f, "LID 0x{:04x}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}, GID {}", self.lid, self.gid)
    }
}

/// Listens on every address of this machine, IPv4 and IPv6 alike where there is IPv6.
pub(super) fn listen(port: u16) -> anyhow::Result<TcpListener> {
    TcpListener::bind(("::", port))
        .or_else(|e| match e.kind() {
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(e),
            _ => TcpListener::bind(("0.0.0.0", port)),
        })
        .map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "TCP port {port} is taken: another server may be running; choose one with -p"
            ),
            _ => anyhow::Error::new(e).context(format!("cannot listen on TCP port {port}")),
        })
}

/// Waits for a client.
pub(super) fn accept(listener: &TcpListener) -> anyhow::Result<Channel> {
    let (stream, _) = listener.accept().context("cannot accept a client")?;
    Channel::new(stream)
}

/// Connects to the server.
pub(super) fn connect(host: &str, port: u16) -> anyhow::Result<Channel> {
    let addresses =
        (host, port).to_socket_addrs().with_context(|| format!("cannot find the host {host:?}"))?;
    let (mut last, mut is_local) = (io::Error::from(ErrorKind::NotFound), false);
    for address in addresses {
        is_local = address.ip().is_loopback();
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Channel::new(stream),
            Err(e) => last = e,
        }
    }
    let hint = match last.kind() {
        ErrorKind::ConnectionRefused => ": no program listens there; start the server first",
        ErrorKind::TimedOut if is_local => {
            ": is the loopback interface up? `ip link set lo up` does that"
        }
        _ => "",
    };
    Err(anyhow::Error::new(last).context(format!("cannot reach {host} port {port}{hint}")))
}

/// The connection to the peer.
#[derive(Debug)]
pub(super) struct Channel {
    stream: TcpStream,
}

impl Channel {
    fn new(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream })
    }

    /// Our own address, as the peer sees it, and that of the peer.
    pub(super) fn ends(&self) -> anyhow::Result<(std::net::IpAddr, std::net::IpAddr)> {
        let (own, peer) = (self.stream.local_addr()?, self.stream.peer_addr()?);
        Ok((own.ip().to_canonical(), peer.ip().to_canonical()))
    }

    /// Sends addresses; `total` of them, the rest zeros.
    pub(super) fn send(&mut self, addresses: &[Address], total: usize) -> anyhow::Result<()> {
        let mut bytes = Vec::with_capacity(total * ADDRESS_LEN);
        for i in 0..total {
            bytes.extend(addresses.get(i).copied().unwrap_or_default().emit());
        }
        self.stream.write_all(&bytes).context("the peer hung up while we sent our address")
    }

    /// Receives `total` addresses.
    pub(super) fn receive(&mut self, total: usize) -> anyhow::Result<Vec<Address>> {
        let mut addresses = Vec::with_capacity(total);
        for i in 0..total {
            let mut bytes = [0; ADDRESS_LEN];
            let read = self.stream.read_exact(&mut bytes);
            read.map_err(|e| describe_read(e, "its address", i, total))?;
            addresses.push(Address::parse(&bytes)?);
        }
        Ok(addresses)
    }

    /// Tells the server that the client has its addresses.
    pub(super) fn say_done(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(DONE).context("the server hung up before it heard that we are ready")
    }

    /// Waits until the client has the addresses of the server.
    pub(super) fn await_done(&mut self) -> anyhow::Result<()> {
        let mut bytes = [0; 5];
        let read = self.stream.read_exact(&mut bytes);
        read.map_err(|e| describe_read(e, "that it is ready", 0, 1))?;
        ensure!(
            bytes == *DONE,
            "the peer runs another kind of pingpong: it sent {:?} where {:?} was due",
            String::from_utf8_lossy(&bytes),
            "done"
        );
        Ok(())
    }
}

fn describe_read(e: io::Error, what: &str, at: usize, total: usize) -> anyhow::Error {
    const OTHER: &str = "it may run another kind of pingpong";
    let seconds = PATIENCE.as_secs();
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut if at == 0 => {
            anyhow::anyhow!("the peer did not say {what} within {seconds} s: {OTHER}")
        }
        ErrorKind::WouldBlock
        | ErrorKind::TimedOut
        | ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
            if at > 0 =>
        {
            anyhow::anyhow!("the peer sent {at} of {total} addresses: {OTHER}")
        }
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            anyhow::anyhow!("the peer hung up before it said {what}: {OTHER}")
        }
        _ => anyhow::Error::new(e).context("the connection to the peer broke"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Address {
        Address {
            lid: 0,
            qpn: Qpn::new(0x11),
            psn: Psn::new(0x00ab_cdef),
            gid: Gid::from_ipv4([192, 0, 2, 7]),
        }
    }

    #[test]
    fn an_address_has_the_bytes_that_rdma_core_sends() {
        let text = b"0000:000011:abcdef:00000000000000000000ffffc0000207\0";
        assert_eq!(&example().emit(), text);
        assert_eq!(Address::parse(text).unwrap(), example());
    }

    #[test]
    fn garbage_is_refused_in_words() {
        for bad in [
            &b"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: everything!\r\n"[..],
            b"0000:000011:abcdef:00000000000000000000ffffc00002\xc3\xa9\0",
            b"0000:1000011:bcdef:00000000000000000000ffffc0000207\0",
            b"+000:000011:abcdef:zz000000000000000000ffffc0000207\0",
            b"",
        ] {
            let error = Address::parse(bad).unwrap_err().to_string();
            assert!(error.contains("does not speak pingpong"), "{error}");
        }
    }
}
