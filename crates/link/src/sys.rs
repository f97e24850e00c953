//! System calls that none of the crates we depend on wraps.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use feroce_train::{Burst, BurstPiece, Scatter};
use feroce_wire::Gid;
use nix::errno::Errno;

/// Sets a socket option that takes an integer.
pub(crate) fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    let value: *const i32 = &raw const value;
    // SAFETY: the descriptor is borrowed for the call, and the pointer leads to `len` bytes that
    // live as long.
    let rc = unsafe { libc::setsockopt(fd, level, name, value.cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the program that chooses among sockets which share an address and a port.
pub(crate) fn attach_reuseport_filter(
    socket: impl AsFd,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&filter) as libc::socklen_t);
    // SAFETY: the descriptor is borrowed for the call, and the pointers lead to a program header
    // and to as many instructions as it says. The kernel copies both and writes to neither.
    let rc = unsafe { libc::setsockopt(fd, level, name, (&raw const filter).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket address, as the kernel reads and writes it: long enough for IPv6.
#[derive(Debug)]
#[repr(C, align(8))]
struct RawAddress([u8; 28]);

const _: () = assert!(size_of::<libc::sockaddr_in6>() == 28, "addresses are longer here");

impl RawAddress {
    const UNKNOWN: Self = Self([0; 28]);

    /// An address, and how many of the bytes it takes.
    #[inline]
    fn of(address: &SocketAddr) -> (Self, libc::socklen_t) {
        let mut raw = Self::UNKNOWN;
        raw.0[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                raw.0[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                raw.0[8..24].copy_from_slice(&v6.ip().octets());
                raw.0[24..].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, raw.0.len())
            }
        };
        raw.0[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        (raw, len as libc::socklen_t)
    }

    /// What the first `len` bytes say.
    #[inline]
    fn read(&self, len: libc::socklen_t) -> Option<(Gid, u16)> {
        let bytes = self.0.get(..len as usize)?;
        let (family, rest) = bytes.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let gid = match i32::from(u16::from_ne_bytes(*family)) {
            libc::AF_INET => Gid::from_ipv4(*rest.first_chunk()?),
            // The address comes after the flow label.
            libc::AF_INET6 => Gid(*rest.get(4..)?.first_chunk()?),
            _ => return None,
        };
        Some((gid, u16::from_be_bytes(*port)))
    }
}

/// Sends a datagram, if there is room for it.
///
/// This call, and the one that receives, bypass the libc functions of the same names. Those are
/// thread cancellation points: a cancellation would leave the link in the middle of a call and the
/// driver locked. A cancellation point also costs two atomic exchanges, which is noticeable in a
/// polling thread.
#[inline]
pub(crate) fn send_to(fd: RawFd, bytes: &[u8], to: &SocketAddr) -> Result<(), Errno> {
    let flags = libc::MSG_DONTWAIT;
    let (at, len) = (bytes.as_ptr(), bytes.len());
    let (to, to_len) = RawAddress::of(to);
    // SAFETY: both pointers lead to as many bytes as is said, which the kernel only reads.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendto, fd, at, len, flags, to.0.as_ptr(), to_len) };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Sends a message over a connected socket, if there is room for it, or as many bytes of a stream
/// as there is room for; see [`send_to`]. Returns how many were taken.
#[inline]
pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let (at, len, nowhere) = (bytes.as_ptr(), bytes.len(), std::ptr::null::<u8>());
    // SAFETY: the pointer leads to as many bytes as is said, which the kernel only reads.
    let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, at, len, flags, nowhere, 0) };
    usize::try_from(sent).map_err(|_| Errno::last())
}

/// Pieces of a burst that one call sends at most.
const MAX_PIECES: usize = 256;

/// Sends what is left of a burst behind its first `sent` bytes over a connected stream, as far as
/// there is room for it; see [`send_to`]. Returns how many bytes were taken.
pub(crate) fn send_burst(fd: RawFd, burst: &Burst, sent: usize) -> Result<usize, Errno> {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut iov, mut count, mut skip) = ([nothing; MAX_PIECES], 0, sent);
    for piece in burst.pieces() {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let base = match piece {
            BurstPiece::Bytes(bytes) => bytes.as_ptr().expose_provenance(),
            // Memory without a place is copied; see `Stream::send_burst`.
            BurstPiece::Memory(grant) => grant.place().ok_or(Errno::EFAULT)?.0 as usize,
        };
        let Some(place) = iov.get_mut(count) else { break };
        if skipped < piece.len() {
            let iov_base = std::ptr::with_exposed_provenance_mut(base + skipped);
            *place = libc::iovec { iov_base, iov_len: piece.len() - skipped };
            count += 1;
        }
    }
    // SAFETY: a message header of zeros is a valid one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = count as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every piece leads to as many bytes as it says, of the burst or of memory that the
    // burst has a right to read, and lives until the call returns. The kernel only reads them, as
    // they are at that time, and answers with an error if memory is not mapped.
    let taken = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, flags) };
    usize::try_from(taken).map_err(|_| Errno::last())
}

/// Receives a message from a connected socket, if there is one, or bytes of a stream; see
/// [`send_to`].
#[inline]
pub(crate) fn receive(fd: RawFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let (at, len, flags) = (bytes.as_mut_ptr(), bytes.len(), libc::MSG_DONTWAIT);
    let nowhere = std::ptr::null_mut::<u8>();
    // SAFETY: the pointer leads to as many bytes as is said, which no other code uses until the
    // call returns; the kernel is not asked for the address of the sender.
    let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, at, len, flags, nowhere, nowhere) };
    usize::try_from(got).map_err(|_| Errno::last())
}

/// Pieces of memory that one call receives into at most, and the bytes behind them.
const MAX_PLACES: usize = 33;

/// Receives bytes of a stream into the memory of a scatter list and what follows, as far as that
/// asks for it, into `behind`; see [`send_to`].
pub(crate) fn receive_scattered(
    fd: RawFd,
    scatter: &Scatter,
    behind: &mut [u8],
) -> Result<usize, Errno> {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut iov, mut count) = ([nothing; MAX_PLACES], 0);
    for (place, grant) in iov.iter_mut().zip(scatter.memory()) {
        // Memory without a place is copied to; see `Stream::receive`.
        let (at, iov_len) = grant.place().ok_or(Errno::EFAULT)?;
        let iov_base = std::ptr::with_exposed_provenance_mut(at as usize);
        *place = libc::iovec { iov_base, iov_len };
        count += 1;
    }
    // There is no place for these behind more memory than one call takes.
    if let Some(place) = iov.get_mut(count) {
        let iov_len = scatter.behind.min(behind.len());
        *place = libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len };
        count += 1;
    }
    // SAFETY: a message header of zeros is a valid one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = count as _;
    // SAFETY: every piece leads to as many bytes as it says, of `behind`, which no other code uses
    // until the call returns, or of memory that the list has a right to write. The kernel only
    // writes to them, and answers with an error if memory is not mapped.
    let got = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| Errno::last())
}

const _: () = assert!(size_of::<libc::cmsghdr>() == 16, "control messages have other headers here");

/// Sends a run of datagrams of `segment` bytes each, of which the last may be shorter, if there is
/// room for all of it; see [`send_to`].
#[inline]
pub(crate) fn send_segments(
    fd: RawFd,
    bytes: &[u8],
    to: &SocketAddr,
    segment: u16,
) -> Result<(), Errno> {
    let (mut to, to_len) = RawAddress::of(to);
    // One control message: its length, level and type, then its data.
    let len = size_of::<libc::cmsghdr>() + size_of::<u16>();
    let mut control = [0_u64; 3];
    control[0] = len as u64;
    let mut what = [0; 8];
    what[..4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    what[4..].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    control[1] = u64::from_ne_bytes(what);
    let mut said = [0; 8];
    said[..2].copy_from_slice(&segment.to_ne_bytes());
    control[2] = u64::from_ne_bytes(said);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a message header of zeros is a valid one.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = to.0.as_mut_ptr().cast();
    header.msg_namelen = to_len;
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: every pointer in the header leads to as many bytes as the header says, which the
    // kernel only reads.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const header, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// What a datagram is received into.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) bytes: Vec<u8>,
    from: RawAddress,
    from_len: libc::socklen_t,
    /// For control messages, aligned as they are.
    control: [u64; 16],
}

impl Inbox {
    /// For datagrams of at most `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self { bytes: vec![0; len], from: RawAddress::UNKNOWN, from_len: 0, control: [0; 16] }
    }

    /// Receives a datagram, if there is one, and calls `hear` with level, type and number of each
    /// control message. A polling thread calls this all the time, mostly without result, so it does
    /// nothing else.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        fd: RawFd,
        mut hear: impl FnMut(i32, i32, i32),
    ) -> Result<usize, Errno> {
        let Self { bytes, from, control, .. } = self;
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: a message header of zeros is a valid one.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = from.0.as_mut_ptr().cast();
        header.msg_namelen = size_of_val(from) as _;
        header.msg_iov = &raw mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(control) as _;
        // SAFETY: every pointer in the header leads to as many bytes as the header says, which
        // no other code uses until the call returns.
        let len =
            unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, libc::MSG_DONTWAIT) };
        let len = usize::try_from(len).map_err(|_| Errno::last())?;
        let used = (header.msg_controllen / size_of::<u64>()).min(control.len());
        let mut rest = &control[..used];
        // Each is its length, level and type, then its data, rounded up to whole words.
        while let [len, what, said, ..] = *rest {
            let (what, said) = (what.to_ne_bytes(), said.to_ne_bytes());
            let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
            // The kernel passes some of the numbers in one byte.
            let short = (len as usize) < size_of::<libc::cmsghdr>() + size_of::<i32>();
            let value = if short { i32::from(said[0]) } else { number(&said) };
            hear(number(&what), number(&what[4..]), value);
            rest = rest.get((len as usize).div_ceil(size_of::<u64>()).max(1)..).unwrap_or(&[]);
        }
        self.from_len = header.msg_namelen;
        Ok(len)
    }

    /// Address and port that sent the last datagram, if it is an IP address.
    #[inline]
    pub(crate) fn from(&self) -> Option<(Gid, u16)> {
        self.from.read(self.from_len)
    }
}

/// Binds a packet socket to an interface, from which on it receives frames of an Ethertype.
pub(crate) fn bind_packet(socket: impl AsFd, ethertype: u16, interface: u32) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain data for which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = interface.cast_signed();
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&address) as libc::socklen_t);
    // SAFETY: the pointer leads to `len` bytes, which the kernel only reads.
    let rc = unsafe { libc::bind(fd, (&raw const address).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks an interface for frames to a multicast address, or no longer.
pub(crate) fn set_membership(
    socket: impl AsFd,
    interface: u32,
    group: [u8; 6],
    is_member: bool,
) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&group);
    let request = libc::packet_mreq {
        mr_ifindex: interface.cast_signed(),
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: address,
    };
    let name = if is_member { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&request) as libc::socklen_t);
    let at: *const libc::packet_mreq = &raw const request;
    // SAFETY: the descriptor is borrowed for the call, and the pointer leads to `len` bytes that
    // live as long.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, name, at.cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Frames that one call sends or receives.
pub(crate) const MAX_FRAMES: usize = 64;

/// Sends frames, each of a head and a body, as many as there is room for, and returns how many
/// those were, at most [`MAX_FRAMES`]; see [`send_to`]. An error concerns the first of them.
pub(crate) fn send_frames(fd: RawFd, frames: &[[IoSlice<'_>; 2]]) -> Result<usize, Errno> {
    // SAFETY: message headers of zeros are valid ones.
    let mut headers: [libc::mmsghdr; MAX_FRAMES] = unsafe { std::mem::zeroed() };
    let count = frames.len().min(MAX_FRAMES);
    for (header, frame) in headers.iter_mut().zip(frames) {
        header.msg_hdr.msg_iov = frame.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = frame.len() as _;
    }
    let (at, flags) = (headers.as_mut_ptr(), libc::MSG_DONTWAIT);
    // SAFETY: `count` headers are initialised. Each leads to two `IoSlice`, which have the layout
    // of `iovec`, and these to bytes that are borrowed for the call and that the kernel only reads.
    let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, at, count, flags) };
    usize::try_from(sent).map_err(|_| Errno::last())
}

/// Words for the control message of a received frame: its header, and `tpacket_auxdata`.
const AUXDATA_WORDS: usize = 5;
/// The kernel says that the auxiliary data has a VLAN tag.
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;

/// What is said of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameInfo {
    /// Bytes that were received.
    pub(crate) len: usize,
    /// It is longer than the buffer.
    pub(crate) is_cut: bool,
    /// The VLAN tag that the kernel has taken out of the frame.
    pub(crate) vlan_tci: Option<u16>,
}

/// What frames are received into.
#[derive(Debug)]
pub(crate) struct FrameInbox {
    bytes: Vec<u8>,
    /// Where the first frame is, and the distance to each next one.
    start: usize,
    slot: usize,
    infos: [FrameInfo; MAX_FRAMES],
}

impl FrameInbox {
    /// For frames of at most `len` bytes; those bytes of a frame that begin at `aligned` are at a
    /// multiple of 16 in memory.
    pub(crate) fn new(len: usize, aligned: usize) -> Self {
        let slot = len.next_multiple_of(64);
        let bytes = vec![0; MAX_FRAMES * slot + 16];
        let start = (bytes.as_ptr().addr() + aligned).wrapping_neg() % 16;
        Self { bytes, start, slot, infos: [FrameInfo::default(); MAX_FRAMES] }
    }

    /// Receives at most `most` frames, if there are any, and returns how many; see [`send_to`].
    pub(crate) fn receive(&mut self, fd: RawFd, most: usize) -> Result<usize, Errno> {
        let most = most.clamp(1, MAX_FRAMES);
        // SAFETY: message headers of zeros are valid ones.
        let mut headers: [libc::mmsghdr; MAX_FRAMES] = unsafe { std::mem::zeroed() };
        let mut controls = [[0_u64; AUXDATA_WORDS]; MAX_FRAMES];
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut iovs = [none; MAX_FRAMES];
        let slots = self.bytes[self.start..].chunks_exact_mut(self.slot);
        let places = headers.iter_mut().zip(&mut iovs).zip(&mut controls);
        for (((header, iov), control), slot) in places.zip(slots).take(most) {
            *iov = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            header.msg_hdr.msg_iov = iov;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of_val(control) as _;
        }
        let (at, flags) = (headers.as_mut_ptr(), libc::MSG_DONTWAIT);
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: `most` headers are initialised, as there are more slots than that. Each pointer
        // in them leads to as many bytes as the header says, which no other code uses until the
        // call returns.
        let got = unsafe { libc::syscall(libc::SYS_recvmmsg, fd, at, most, flags, no_timeout) };
        let got = usize::try_from(got).map_err(|_| Errno::last())?;
        for ((info, header), control) in
            self.infos.iter_mut().zip(&headers).zip(&controls).take(got)
        {
            let has_control = header.msg_hdr.msg_controllen >= size_of_val(control);
            *info = FrameInfo {
                len: (header.msg_len as usize).min(self.slot),
                is_cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                vlan_tci: if has_control { vlan_in(control) } else { None },
            };
        }
        Ok(got)
    }

    /// A frame of those received last.
    pub(crate) fn frame(&self, i: usize) -> (&[u8], FrameInfo) {
        let info = self.infos.get(i).copied().unwrap_or_default();
        let from = self.start + i * self.slot;
        (self.bytes.get(from..from + info.len).unwrap_or_default(), info)
    }
}

/// The tag in auxiliary data: status, two lengths, two offsets, then the tag.
fn vlan_in(control: &[u64; AUXDATA_WORDS]) -> Option<u16> {
    let what = control[1].to_ne_bytes();
    let is_auxdata = what[..4] == libc::SOL_PACKET.to_ne_bytes()
        && what[4..] == libc::PACKET_AUXDATA.to_ne_bytes();
    let [s0, s1, s2, s3, ..] = control[2].to_ne_bytes();
    let is_valid = u32::from_ne_bytes([s0, s1, s2, s3]) & TP_STATUS_VLAN_VALID != 0;
    let [low, high, ..] = control[4].to_ne_bytes();
    (is_auxdata && is_valid).then(|| u16::from_ne_bytes([low, high]))
}
