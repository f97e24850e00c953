//! Memory that a program unmaps as soon as it is deregistered, while other threads transmit.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "the test is about threads")]

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::{ALL, Host, connect};
use feroce::{Context, Device, Iova, QpCap, SendOp, SendWr, Settings, WcStatus};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const MESSAGE: usize = 64 << 10;
const MESSAGES: usize = 4;
const LEN: usize = MESSAGE * MESSAGES;

fn open(net: u8, number: u8, shared: bool) -> Context {
    let device = Device::at([Ipv4Addr::new(127, net, 0, number).into()]);
    let mut settings = Settings::default();
    settings.set("shared", if shared { "on" } else { "off" }).unwrap();
    device.open_with(settings).unwrap()
}

fn pages() -> NonNull<u8> {
    let (len, prot) =
        (NonZeroUsize::new(LEN).unwrap(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    // SAFETY: a new mapping replaces no other.
    unsafe { mmap_anonymous(None, len, prot, MapFlags::MAP_PRIVATE) }.unwrap().cast()
}

/// Posts messages from new memory, and deregisters and unmaps it at once: a thread that still read
/// a train would fault. Other threads poll, and so transmit and receive for the device.
fn unmap_while_others_transmit(net: u8, shared: bool, rounds: usize) {
    let (a, b) = (open(net, 1, shared), open(net, 2, shared));
    let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let (cq_a, cq_b) = (a.create_cq(1024).unwrap(), b.create_cq(1024).unwrap());
    let target = pd_b.alloc_mr(LEN, ALL).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for cq in [&cq_a, &cq_b] {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // What becomes of the messages does not matter: the memory may be gone before
                    // they are sent.
                    let _ = cq.poll_one();
                }
            });
        }
        for round in 0..rounds {
            let mut qp_a = pd_a.rc_qp(&cq_a, &cq_a, QpCap::new(8, 8)).create().unwrap();
            let mut qp_b = pd_b.rc_qp(&cq_b, &cq_b, QpCap::new(8, 8)).create().unwrap();
            connect(&mut qp_a, &mut qp_b);
            let base = pages();
            // SAFETY: the pages stay until the memory is deregistered.
            let mr = unsafe { pd_a.register_raw(base.as_ptr(), LEN, Iova::Natural, ALL) }.unwrap();
            for i in 0..MESSAGES {
                let part = i * MESSAGE..(i + 1) * MESSAGE;
                let op = SendOp::Write(target.remote(part.start));
                qp_a.post_send([SendWr::new(i as u64, op, mr.data(part))]).unwrap();
            }
            for _ in 0..round % 8 {
                thread::yield_now();
            }
            mr.dereg().unwrap();
            // SAFETY: the pages are those of `pages`, and no thread reads them any more.
            unsafe { munmap(base.cast(), LEN) }.unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn memory_may_be_unmapped_once_it_is_deregistered_over_sockets() {
    unmap_while_others_transmit(186, false, 200);
}

#[test]
fn memory_may_be_unmapped_once_it_is_deregistered_inside_a_host() {
    unmap_while_others_transmit(187, true, 200);
}

/// The end of any key revokes the answers to READs that are under way inside the host.
#[test]
fn reads_go_on_while_other_keys_of_the_responder_end() {
    const DEPTH: usize = 16;
    const READS: usize = 20_000;
    let (a, b) = Host::pair(188);
    let (mut qp_a, mut qp_b) = (a.rc(), b.rc());
    connect(&mut qp_a, &mut qp_b);
    let expected = b.fill(0, LEN, 5);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                b.pd.alloc_mr(4096, ALL).unwrap().dereg().unwrap();
            }
        });
        let mut read = |i: usize| {
            let part = i % MESSAGES * MESSAGE..(i % MESSAGES + 1) * MESSAGE;
            let op = SendOp::Read(b.mr.remote(part.start));
            qp_a.post_send([SendWr::new(i as u64, op, a.mr.data(part))]).unwrap();
        };
        (0..DEPTH).for_each(&mut read);
        for i in 0..READS {
            let cqe = a.wait();
            if cqe.status != WcStatus::Success {
                is_over.store(true, Ordering::Relaxed);
            }
            assert_eq!((cqe.wr_id, cqe.status), (i as u64, WcStatus::Success));
            if i + DEPTH < READS {
                read(i + DEPTH);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(a.read(0, LEN), expected);
}
