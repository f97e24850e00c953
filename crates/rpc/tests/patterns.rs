//! The patterns of the laboratory: whole messages, and ends that are gone.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use feroce::cm::{Connector, Listener, Manager};
use feroce::{Context, Device};
use feroce_rpc::patterns::{Answerer, Caller, Pattern, PatternError};

const LONGEST: usize = 100_000;

fn device(last: u8) -> Context {
    Device::at([[127, 32, 0, last].into()]).open().unwrap()
}

/// Polls in a thread of its own, as a server does.
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().spawn(work).unwrap()
}

/// A server for one client, which answers with the bytes in reverse order.
fn serve(last: u8) -> (SocketAddr, JoinHandle<Result<u64, PatternError>>) {
    let manager = Manager::with([device(last)]).unwrap();
    let listener = Listener::bind(&manager, ([127, 32, 0, last], 0).into()).unwrap();
    let at = listener.local_addr();
    let serving = spawn(move || {
        let mut answerer = Answerer::accept(listener.accept()?)?;
        answerer.serve(|request, reply| reply.extend(request.iter().rev()), || false)
    });
    (at, serving)
}

#[test]
fn messages_of_every_length_arrive_whole() {
    let here = Manager::with([device(1)]).unwrap();
    for pattern in Pattern::ALL {
        let (at, serving) = serve(2);
        let mut caller = Caller::connect(&here, at, pattern, LONGEST).unwrap();
        let lens = [0, 1, 63, 64, 254, 255, 256, 257, 4096, 8191, 8192, 8193, LONGEST];
        for (round, len) in lens.into_iter().cycle().take(60).enumerate() {
            let request: Vec<u8> = (0..len).map(|i| (i * 7 + round) as u8).collect();
            let expected: Vec<u8> = request.iter().rev().copied().collect();
            assert!(caller.call(&request).unwrap() == expected, "{pattern} {len}");
        }
        let too_long = caller.call(&[0; LONGEST + 1]);
        assert!(matches!(too_long, Err(PatternError::TooLong { .. })), "{pattern}");
        // The next one goes as ever.
        assert_eq!(caller.call(b"ab").unwrap(), b"ba");
        drop(caller);
        assert_eq!(serving.join().unwrap().unwrap(), 61, "{pattern}");
    }
}

#[test]
fn many_calls_do_not_fill_the_queues() {
    let here = Manager::with([device(7)]).unwrap();
    for pattern in Pattern::ALL {
        let (at, serving) = serve(8);
        let mut caller = Caller::connect(&here, at, pattern, 1000).unwrap();
        for i in 0..2000_u32 {
            let bytes = i.to_be_bytes();
            let reversed = i.to_le_bytes();
            assert_eq!(caller.call(&bytes).unwrap(), reversed, "{pattern}");
        }
        drop(caller);
        assert_eq!(serving.join().unwrap().unwrap(), 2000, "{pattern}");
    }
}

#[test]
fn a_caller_hears_that_its_server_is_gone() {
    let here = Manager::with([device(3)]).unwrap();
    for pattern in Pattern::ALL {
        let manager = Manager::with([device(4)]).unwrap();
        let listener = Listener::bind(&manager, ([127, 32, 0, 4], 0).into()).unwrap();
        let at = listener.local_addr();
        let serving = spawn(move || {
            let mut answerer = Answerer::accept(listener.accept().unwrap()).unwrap();
            let is_over = std::cell::Cell::new(false);
            answerer.serve(|_, _| is_over.set(true), || is_over.get()).unwrap()
        });
        let mut caller = Caller::connect(&here, at, pattern, 1000).unwrap();
        assert_eq!(caller.call(b"one").unwrap(), b"");
        assert_eq!(serving.join().unwrap(), 1);
        let gone = caller.call(b"two");
        let is_told = matches!(gone, Err(PatternError::Disconnected | PatternError::Failed(_)));
        assert!(is_told, "{pattern}: {gone:?}");
    }
}

#[test]
fn strangers_are_refused() {
    let here = Manager::with([device(5)]).unwrap();
    for hello in
        [&b"hello"[..], b"fPAT\x01\x09\0\0\0\x40", b"fPAT\x01\x01\xff\xff\xff\xff", b"fPAT\x02"]
    {
        let (at, serving) = serve(6);
        let refused = Connector::new(&here).private_data(hello).connect(at);
        assert!(refused.is_err());
        let error = serving.join().unwrap().unwrap_err();
        let is_refused = matches!(error, PatternError::NotAPeer | PatternError::TooLong { .. });
        assert!(is_refused, "{error}");
    }
}
