//! Which call begins first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use feroce::sim::{Host, World};
use feroce_rpc::{Answer, Client, Limits, Methods, Request, Server, ServerOptions};

use crate::harness::*;

/// Makes a call that keeps what is scarce, and then four that wait for it; returns the order in
/// which they were handled.
fn order(limits: Limits, handlers: usize) -> Vec<u8> {
    let mut world = World::new(1).expect("a world");
    let handled: Arc<Mutex<Vec<u8>>> = Arc::default();
    let gate = Gate::default();
    let (log, there) = (Arc::clone(&handled), gate.clone());
    world.server("server", move |host: Host| {
        let (log, gate) = (Arc::clone(&log), there.clone());
        async move {
            let options = ServerOptions { handlers, ..options() };
            let at = (host.addr_of("server"), PORT).into();
            let server = Server::bind(&host.manager()?, at, options)?;
            let methods = Methods::new().on_call(1, move |call| {
                log.lock().unwrap().push(call.priority);
                let gate = gate.clone();
                async move {
                    gate.wait().await;
                    Ok(Answer::Copied(Vec::new()))
                }
            });
            server.serve(methods).await?;
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    world.host("client", move |host: Host| {
        let gate = gate.clone();
        async move {
            let to = (host.addr_of("server"), PORT).into();
            let (client, connection) = Client::connect(&host.manager()?, to, limits).await?;
            drop(host.spawn(connection));
            let call = |priority: u8| {
                let client = client.clone();
                host.spawn(
                    async move { client.call(Request::new(1, b"").priority(priority)).await },
                )
            };
            let mut calls = vec![call(9)];
            host.sleep(Duration::from_millis(1)).await;
            calls.extend([0, 3, 1, 3].map(call));
            host.sleep(Duration::from_millis(1)).await;
            gate.open();
            for call in calls {
                call.await?;
            }
            Ok::<_, Box<dyn std::error::Error>>(())
        }
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
    let handled = handled.lock().unwrap();
    handled.clone()
}

#[test]
fn calls_wait_at_the_client_for_the_window() {
    assert_eq!(order(Limits { window: 1, ..limits() }, 256), [9, 3, 3, 1, 0]);
}

#[test]
fn calls_wait_at_the_server_for_a_handler() {
    assert_eq!(order(limits(), 1), [9, 3, 3, 1, 0]);
}

#[test]
fn without_scarcity_calls_are_handled_as_they_come() {
    assert_eq!(order(limits(), 256), [9, 0, 3, 1, 3]);
}
