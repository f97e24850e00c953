//! A consumer asks for an event of one queue, or of two, while entries come.

use alloc::sync::Arc as Shared;

use feroce_ring::{EventRequest, OneEvent, Producer, spsc};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::sleep::Wake;

const NEXT: u8 = 2;

/// What a producer of one of several queues shares with the consumer of all.
#[derive(Default)]
struct Event {
    one: OneEvent,
    given: AtomicU32,
    wake: Wake,
}

#[test]
fn no_consumer_sleeps_over_an_entry() {
    loom::model(|| {
        let (mut entries, mut ring) = spsc(1);
        let shared = Arc::new((EventRequest::new(), Wake::default()));
        let completing = thread::spawn({
            let shared = shared.clone();
            move || {
                let (request, wake) = &*shared;
                entries.push(7).expect("there is room");
                if request.take() == NEXT {
                    wake.write();
                }
            }
        });
        let (request, wake) = &*shared;
        request.ask(NEXT);
        if ring.is_empty() {
            wake.sleep();
        }
        assert_eq!(ring.pop(), Some(7));
        completing.join().expect("the producer does not fail");
    });
}

/// An entry enters a queue, whose request may be taken.
fn complete(mut entries: Producer<u32>, request: &EventRequest, event: &Event) {
    entries.push(7).expect("there is room");
    if request.take() == NEXT && event.one.take() {
        event.given.fetch_add(1, Ordering::Relaxed);
        event.wake.write();
    }
}

#[test]
fn of_several_queues_one_gives_the_event() {
    loom::model(|| {
        let event = Arc::new(Event::default());
        let (rings, threads): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| {
                let (entries, ring) = spsc(1);
                let request = Shared::new(EventRequest::new());
                let (event, of_producer) = (event.clone(), request.clone());
                let completing = thread::spawn(move || complete(entries, &of_producer, &event));
                ((ring, request), completing)
            })
            .unzip();
        event.one.ask();
        rings.iter().for_each(|(_, request)| request.ask(NEXT));
        if rings.iter().all(|(ring, _)| ring.is_empty()) {
            event.wake.sleep();
            assert!(rings.iter().any(|(ring, _)| !ring.is_empty()), "woken for an entry");
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no producer fails"));
        assert!(event.given.load(Ordering::Relaxed) <= 1);
    });
}

/// The other queue still has the request for the last event, and an entry enters it while the
/// consumer asks anew.
#[test]
fn a_consumer_that_asks_again_is_woken_by_a_queue_that_kept_its_request() {
    loom::model(|| {
        let event = Arc::new(Event::default());
        let (entries, ring) = spsc(1);
        let request = Shared::new(EventRequest::new());
        request.ask(NEXT);
        let (of_event, of_request) = (event.clone(), request.clone());
        let completing = thread::spawn(move || complete(entries, &of_request, &of_event));
        if !event.one.is_pending() {
            request.keep(0);
        }
        event.one.ask();
        request.ask(NEXT);
        if ring.is_empty() {
            event.wake.sleep();
        }
        assert_eq!(ring.len(), 1);
        completing.join().expect("the producer does not fail");
    });
}
