//! Rings between a program and the process of a fabric, with both ends in one process.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;

use feroce_link::Logger;
use feroce_link::port::{MAX_MESSAGE, PortChannel, PortListener, PortSocket, Received, Sent};
use feroce_local::{Offered, PortRings, RingChannel};
use feroce_train::Instant;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

/// The message of an offer, and the lengths of the files that come with it.
const OFFER: [u8; 16] = *b"feroce rings   1";
const LENGTHS: [u64; 2] = [4096 + (1 << 20), 4096 + (256 << 10)];
/// Where a ring has the number of bytes that its producer has published.
const TAIL: u64 = 128;

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
}

/// Two connected sockets: that of a program, and that of the fabric.
fn sockets(name: &str) -> (PortSocket, PortSocket) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("port-rings");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    let _ = std::fs::remove_file(&path);
    let listener = PortListener::bind(&path).expect("a listener");
    let program = PortSocket::connect(&path).expect("a connection");
    (program, listener.accept().expect("a listener").expect("a connection"))
}

/// Waits for the offer of a program.
fn offered(fabric: &PortSocket) -> Offered {
    loop {
        match PortRings::accept(fabric) {
            Offered::Nothing => thread::yield_now(),
            offered => return offered,
        }
    }
}

/// A program and a fabric that have agreed on rings.
fn connected(name: &str) -> (Box<dyn PortChannel>, PortSocket, PortRings) {
    let (program, fabric) = sockets(name);
    thread::scope(|scope| {
        let offering = scope
            .spawn(move || RingChannel::offer(program, &Logger::default()).expect("a channel"));
        let Offered::Rings(rings) = offered(&fabric) else { panic!("no rings") };
        (offering.join().expect("a channel"), fabric, rings)
    })
}

fn take(program: &mut dyn PortChannel) -> Option<Vec<u8>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    match program.receive(Instant::ZERO, &mut buffer) {
        Received::Message(len) => Some(buffer[..len].to_vec()),
        Received::Nothing => None,
        Received::Gone => panic!("the fabric is gone"),
    }
}

#[test]
fn messages_pass_the_rings_and_only_who_sleeps_is_woken() {
    let (mut program, fabric, mut rings) = connected("pass");
    let mut buffer = vec![0; MAX_MESSAGE];
    let longest = vec![7; MAX_MESSAGE];
    // The rings are armed for the first message.
    for (message, rings_bell) in [(&longest[..], true), (b"short", false)] {
        assert_eq!(program.send(message), Sent::Done);
        assert_eq!(is_readable(fabric.as_fd()), rings_bell);
        assert!(PortRings::hear(&fabric));
        assert_eq!(rings.receive(&fabric, &mut buffer), Received::Message(message.len()));
        assert_eq!(&buffer[..message.len()], message);
        assert_eq!(rings.receive(&fabric, &mut buffer), Received::Nothing);
    }
    assert_eq!(rings.send(&fabric, &longest), Sent::Done);
    assert!(!is_readable(program.wait_fd()) && !program.arm(), "it is awake, and must stay so");
    assert_eq!(take(&mut *program).as_deref(), Some(&longest[..]));
    assert!(take(&mut *program).is_none() && program.arm());
    assert_eq!(rings.send(&fabric, b"bell"), Sent::Done);
    assert!(is_readable(program.wait_fd()));
    assert_eq!(take(&mut *program).as_deref(), Some(&b"bell"[..]));
    assert!(is_readable(program.wait_fd()), "another thread may sleep there");
    assert!(program.arm() && !is_readable(program.wait_fd()), "the bell is heard once");
}

#[test]
fn a_full_ring_takes_no_more_until_its_reader_rings() {
    let (mut program, fabric, mut rings) = connected("full");
    let message = vec![1; 10_000];
    let sent = (0..).take_while(|_| rings.send(&fabric, &message) == Sent::Done).count();
    assert!(sent * message.len() > 200_000, "{sent}");
    assert!(!is_readable(fabric.as_fd()));
    assert_eq!(take(&mut *program).map(|it| it.len()), Some(message.len()));
    assert!(is_readable(fabric.as_fd()), "there is room");
    assert!(PortRings::hear(&fabric) && rings.send(&fabric, &message) == Sent::Done);
    assert_eq!((0..).map_while(|_| take(&mut *program)).count(), sent);
    assert!(!is_readable(fabric.as_fd()), "the fabric does not wait for room");
}

#[test]
fn each_end_hears_of_the_end_of_the_other() {
    let (mut program, fabric, mut rings) = connected("program-ends");
    assert_eq!(program.send(b"last"), Sent::Done);
    drop(program);
    assert!(!PortRings::hear(&fabric));
    let mut buffer = vec![0; MAX_MESSAGE];
    assert_eq!(rings.send(&fabric, b"for none"), Sent::Done, "which is no reason to stop reading");
    assert_eq!(rings.receive(&fabric, &mut buffer), Received::Message(4), "it was sent before");

    let (mut program, fabric, rings) = connected("fabric-ends");
    assert!(take(&mut *program).is_none() && program.arm());
    drop((fabric, rings));
    assert!(is_readable(program.wait_fd()) && !program.arm());
    assert_eq!(program.receive(Instant::ZERO, &mut buffer), Received::Gone);

    let (mut program, fabric, rings) = connected("fabric-ends-while-polled");
    assert!(take(&mut *program).is_none());
    drop((fabric, rings));
    let later = Instant::ZERO.plus_nanos(10_000_000);
    assert_eq!(program.receive(later, &mut buffer), Received::Gone);
}

#[test]
fn a_program_that_says_something_else_or_nothing_is_gone() {
    let (program, fabric) = sockets("else");
    assert!(matches!(PortRings::accept(&fabric), Offered::Nothing));
    for message in [&[7; 9][..], &[7; 16], &[7; 4096]] {
        assert_eq!(program.send(message), Sent::Done);
        assert!(matches!(offered(&fabric), Offered::Gone));
    }
    drop(program);
    assert!(matches!(offered(&fabric), Offered::Gone));
}

/// A file as a program would make it for a ring.
fn file(len: u64, seals: SealFlag) -> File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("ring", flags).expect("a file"));
    file.set_len(len).expect("a length");
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    file
}

fn offer(program: &PortSocket, files: &[File]) {
    let fds: Vec<_> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let (fd, data) = (program.as_fd().as_raw_fd(), [IoSlice::new(&OFFER)]);
    sendmsg::<UnixAddr>(fd, &data, &rights, MsgFlags::empty(), None).expect("sent");
}

#[test]
fn rings_that_may_become_shorter_or_have_another_length_are_refused() {
    let (program, fabric) = sockets("refused");
    let fixed = SealFlag::F_SEAL_SHRINK;
    let good = || LENGTHS.map(|len| file(len, fixed));
    let [to_fabric, to_program] = good();
    let offers: [Vec<File>; 5] = [
        vec![],
        vec![to_fabric],
        vec![file(LENGTHS[0], fixed), file(LENGTHS[1], SealFlag::F_SEAL_GROW)],
        vec![file(LENGTHS[0] - 4096, fixed), to_program],
        good().into_iter().chain(good()).collect(),
    ];
    for files in offers {
        offer(&program, &files);
        let mut buffer = vec![0; MAX_MESSAGE];
        let found = PortRings::accept(&fabric);
        assert!(matches!(found, Offered::None), "{found:?}");
        assert_eq!(program.receive(&mut buffer), Received::Message(1));
        assert_eq!(buffer[0], 0, "refused");
    }
    offer(&program, &good());
    assert!(matches!(offered(&fabric), Offered::Rings(_)), "and good ones are taken");
}

/// Descriptors that this process has open.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a folder").count()
}

#[test]
fn files_for_which_there_is_no_room_are_closed() {
    let (program, fabric) = sockets("no-room");
    let files: Vec<File> = (0..9).map(|_| file(4096, SealFlag::F_SEAL_SHRINK)).collect();
    offer(&program, &files);
    let before = open_files();
    let (limit, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    // The kernel gives the first few, and says that it has left out the others.
    let highest = files.iter().map(|file| file.as_raw_fd()).max().expect("files");
    setrlimit(Resource::RLIMIT_NOFILE, highest as u64 + 4, most).expect("a lower limit");
    let found = PortRings::accept(&fabric);
    setrlimit(Resource::RLIMIT_NOFILE, limit, most).expect("the limit");
    assert!(matches!(found, Offered::None), "{found:?}");
    assert_eq!(open_files(), before);
}

#[test]
fn a_program_that_breaks_its_ring_is_as_good_as_gone() {
    let (program, fabric) = sockets("broken");
    let files = LENGTHS.map(|len| file(len, SealFlag::F_SEAL_SHRINK));
    offer(&program, &files);
    let Offered::Rings(mut rings) = offered(&fabric) else { panic!("no rings") };
    // More is published than the ring has bytes.
    files[0].write_all_at(&u32::MAX.to_ne_bytes(), TAIL).expect("a word");
    assert_eq!(rings.receive(&fabric, &mut vec![0; MAX_MESSAGE]), Received::Gone);
}
