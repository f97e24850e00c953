//! Checks of the way to another machine.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

use super::Finding;

/// The UDP port of RoCEv2.
const ROCE: u16 = 4791;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// TCP ports that a machine which is up mostly accepts or refuses: ssh, and those of perftest and
/// of `feroce perf`.
const TCP_PORTS: [u16; 2] = [22, 18515];

/// Runs all checks.
pub(super) fn check(host: &str, show: &mut impl FnMut(Finding)) {
    let address = match (host, ROCE).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => address,
        Ok(None) => return show(Finding::bad(format!("{host} has no address"), CHECK_NAME)),
        Err(e) => return show(Finding::bad(format!("{host}: {e}"), CHECK_NAME)),
    };
    let ip = address.ip();
    match source(address) {
        Ok(own) => show(Finding::ok(format!("packets to {ip} leave from {own}"))),
        Err(e) => {
            return show(Finding::bad(
                format!("there is no route to {ip}: {e}"),
                format!("`ip route get {ip}` shows what the kernel says"),
            ));
        }
    }
    let tcp = TCP_PORTS.iter().any(|&port| answers_tcp((ip, port).into()));
    show(judge(ip, probe(address), tcp));
}

const CHECK_NAME: &str = "check the name, or give an address";

/// Our address on the way there.
fn source(to: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((unspecified(to), 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

fn unspecified(to: SocketAddr) -> IpAddr {
    if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}

/// What became of a datagram to the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// The machine says that nothing receives there.
    Closed,
    /// The way says that the machine cannot be reached.
    Unreachable,
    /// No answer, which is how an adapter treats a packet that is none of RoCE.
    None,
}

/// Sends an empty datagram, and waits for what ICMP says about it.
fn probe(to: SocketAddr) -> Answer {
    let ask = || {
        let socket = UdpSocket::bind((unspecified(to), 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(&[])?;
        socket.recv(&mut [0; 1])
    };
    match ask().map_err(|e| e.kind()) {
        Err(ErrorKind::ConnectionRefused) => Answer::Closed,
        Err(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => Answer::Unreachable,
        _ => Answer::None,
    }
}

/// Whether a machine accepts or refuses a TCP connection, which shows that it is up.
fn answers_tcp(to: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Ok(_) => true,
        Err(e) => e.kind() == ErrorKind::ConnectionRefused,
    }
}

fn judge(ip: IpAddr, udp: Answer, tcp: bool) -> Finding {
    match (udp, tcp) {
        (Answer::Closed, _) => Finding::note(
            format!("{ip} is up, and no program uses UDP port {ROCE} there"),
            "start the server first; a device receives while a program has it open",
        ),
        (Answer::None, true) => Finding::note(
            format!(
                "{ip} is up; UDP packets to port {ROCE} are dropped or taken without an answer"
            ),
            format!(
                "that is right if an RDMA program runs there; otherwise UDP port {ROCE} is \
                 filtered: look at the firewalls of both machines"
            ),
        ),
        (Answer::None | Answer::Unreachable, _) => Finding::bad(
            format!("{ip} does not answer, neither by UDP nor by TCP"),
            format!("is the machine up? `ip route get {ip}` and `ping {ip}` may tell more"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    #[test]
    fn answers_tell_what_is_wrong() {
        let ip = IpAddr::from([192, 0, 2, 1]);
        let says = |udp, tcp, grade, text: &str| {
            let finding = judge(ip, udp, tcp);
            assert_eq!(finding.grade, grade);
            assert!(finding.text().contains(text), "{}", finding.text());
        };
        says(Answer::Closed, false, Grade::Note, "no program uses UDP port 4791");
        says(Answer::None, true, Grade::Note, "UDP port 4791 is filtered");
        says(Answer::None, false, Grade::Bad, "is the machine up?");
        says(Answer::Unreachable, false, Grade::Bad, "does not answer");
    }

    #[test]
    fn a_closed_port_says_so() {
        assert_eq!(probe(SocketAddr::from(([127, 91, 0, 7], 4791))), Answer::Closed);
    }

    #[test]
    fn a_port_in_use_is_silent() {
        let taken = UdpSocket::bind("127.91.0.8:0").unwrap();
        assert_eq!(probe(taken.local_addr().unwrap()), Answer::None);
    }
}
