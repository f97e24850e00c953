//! What may be sent to other threads and shared between them, which the compiler checks.

use feroce::cm::{CmId, Connection, Connector, EventChannel, Listener, Manager};
use feroce::{CompChannel, Context, Cq, Device, Mr, Pd, Qp, Srq};

fn is_shared<T: Send + Sync>() {}

fn is_sent<T: Send>(_: T) {}

#[test]
fn objects_are_sent_and_shared() {
    is_shared::<Connection>();
    is_shared::<Connector>();
    is_shared::<Listener>();
    is_shared::<Manager>();
    is_shared::<EventChannel>();
    is_shared::<CmId>();
    is_shared::<Qp>();
    is_shared::<Cq>();
    is_shared::<CompChannel>();
    is_shared::<Context>();
    is_shared::<Device>();
    is_shared::<Mr>();
    is_shared::<Pd>();
    is_shared::<Srq>();
}

/// What `tokio::spawn` demands of a future: that it can be sent. It need not run for that.
#[expect(dead_code, reason = "the compiler checks it")]
fn futures_of_connections_are_sent(connection: Connection) {
    is_sent(async move {
        connection.wait_disconnected_async().await?;
        connection.disconnect_async().await
    });
}
