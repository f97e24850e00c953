//! Files that describe networks.

use feroce_subnet::{Net, NetErrorKind, NodeKind};

#[test]
fn a_fat_tree_is_read() {
    let net = Net::parse(include_str!("nets/ft4.net")).expect("a topology");
    assert_eq!((net.nodes.len(), net.links.len()), (8, 8));
    let guid = |name| net.nodes[net.find(name).expect("a node")].guid;
    assert_eq!(
        ["Host1", "Host2", "Host3", "Host4"].map(guid),
        [0x10_0000, 0x10_0002, 0x10_0004, 0x10_0006]
    );
    assert_eq!(
        ["Leaf1", "Leaf2", "Spine1", "Spine2"].map(guid),
        [0x20_0000, 0x20_0001, 0x20_0002, 0x20_0003]
    );
    let ring = Net::parse(include_str!("nets/ring6.net")).expect("a topology");
    assert_eq!((ring.nodes.len(), ring.links.len()), (12, 12));
}

#[test]
fn what_ibnetdiscover_prints_is_read() {
    let text = r#"
vendid=0x2c9
devid=0xbd36
sysimgguid=0x2c9000100d053
switchguid=0x2c9000100d050(2c9000100d050)
Switch 24 "S-0002c9000100d050"  # "Leaf one" base port 0 lid 3 lmc 0
[1] "H-0002c90000000001"[1](2c90000000002)   # "host HCA-1" lid 7 4xSDR

caguid=0x2c90000000001
Ca 2 "H-0002c90000000001"  # "host HCA-1"
[1](2c90000000002)  "S-0002c9000100d050"[1] w=12 # lid 7 lmc 0 "Leaf one" lid 3 4xSDR
"#;
    let net = Net::parse(text).expect("a topology");
    let [leaf, host] = &net.nodes[..] else { panic!("{:?}", net.nodes) };
    assert_eq!((leaf.kind, host.kind), (NodeKind::Switch, NodeKind::Adapter));
    assert_eq!((leaf.guid, leaf.system_guid), (0x2_c900_0100_d050, 0x2_c900_0100_d053));
    assert_eq!((host.guid, host.system_guid), (0x2_c900_0000_0001, 0x2_c900_0000_0001));
    assert_eq!((leaf.description.as_str(), host.description.as_str()), ("Leaf one", "host HCA-1"));
    assert_eq!(net.find("Leaf one"), Some(0));
    assert_eq!(net.links.len(), 1);
}

#[test]
fn parts_begin_with_a_line_of_their_own() {
    let text =
        "part=east\nHca 1 \"a\"\nHca 1 \"b\"\npart = west\nHca 1 \"c\"\npart=east\nHca 1 \"d\"";
    let net = Net::parse(text).expect("a topology");
    assert_eq!(net.parts, ["east", "west"]);
    assert_eq!(net.nodes.iter().map(|node| node.part).collect::<Vec<_>>(), [0, 0, 1, 0]);
    // Comments and blanks make no other topology; a name, a link or a part does.
    let digest = |text: &str| Net::parse(text).expect("a topology").digest();
    assert_eq!(digest(text), digest(&format!("# a comment\n{text}\n")));
    for other in [text.replace("\"b\"", "\"e\""), text.replacen("east", "west", 1)] {
        assert_ne!(digest(text), digest(&other));
    }
    assert_ne!(digest(text), digest(&format!("{text}\n[1] \"a\"[1]")));
}

#[test]
fn errors_name_the_line() {
    let error = |text: &str| Net::parse(text).expect_err(text);
    let name = |name: &str| name.to_owned();
    let cases = [
        ("", 1, NetErrorKind::Empty),
        ("# only a comment\n\n", 2, NetErrorKind::Empty),
        ("Switch 8 \"a\"\nRouter 1 \"b\"", 2, NetErrorKind::Unknown(name("Router"))),
        ("switch 8 \"a\"", 1, NetErrorKind::Unknown(name("switch"))),
        ("Switch 8 a", 1, NetErrorKind::Node),
        ("Switch 8 \"\"", 1, NetErrorKind::Node),
        ("Switch 0 \"a\"", 1, NetErrorKind::Ports(name("0"))),
        ("Switch 255 \"a\"", 1, NetErrorKind::Ports(name("255"))),
        ("Switch x \"a\"", 1, NetErrorKind::Ports(name("x"))),
        ("caguid=zz\nHca 1 \"a\"", 1, NetErrorKind::Property(name("caguid"))),
        ("colour=1\nHca 1 \"a\"", 1, NetErrorKind::Unknown(name("colour"))),
        ("[1] \"a\"[1]", 1, NetErrorKind::Stray),
        ("Hca 1 \"a\"\n[1] a[1]", 2, NetErrorKind::Link),
        ("Hca 1 \"a\"\n[one] \"a\"[1]", 2, NetErrorKind::Link),
        ("Hca 1 \"a\"\n[1] \"b\"", 2, NetErrorKind::Link),
        ("Hca 1 \"a\"\n[1] \"b\"[1]", 2, NetErrorKind::NoNode(name("b"))),
        ("Hca 1 \"a\"\n[1] \"a\"[1]", 2, NetErrorKind::Loop(name("a"), 1)),
        ("Hca 2 \"a\"\n[3] \"a\"[1]", 2, NetErrorKind::NoPort(name("a"), 3)),
        ("Hca 2 \"a\"\n[1] \"a\"[0]", 2, NetErrorKind::NoPort(name("a"), 0)),
        ("Hca 1 \"a\"\nHca 1 \"a\"", 2, NetErrorKind::SameName(name("a"))),
        ("caguid=5\nHca 1 \"a\"\ncaguid=5\nHca 1 \"b\"", 4, NetErrorKind::SameGuid(5)),
        ("Hca 3 \"a\"\n[1] \"a\"[2]\n[1] \"a\"[3]", 3, NetErrorKind::Twice(name("a"), 1)),
        ("Hca 3 \"a\"\n[1] \"a\"[2]\n[3] \"a\"[2]", 3, NetErrorKind::Twice(name("a"), 2)),
        ("Hca 2 \"a\"\n[1] \"a\"[2] w=3", 2, NetErrorKind::Width(name("3"))),
        ("part=\nHca 1 \"a\"", 1, NetErrorKind::Part(name(""))),
        ("part=a/b\nHca 1 \"a\"", 1, NetErrorKind::Part(name("a/b"))),
        ("Hca 1 \"a\"\npart=b\nHca 1 \"c\"", 2, NetErrorKind::LatePart),
        ("address=10.91\nHca 1 \"a\"", 1, NetErrorKind::Address(name("10.91"))),
        ("address=224.0.0.1\nHca 1 \"a\"", 1, NetErrorKind::Address(name("224.0.0.1"))),
        ("address=10.91.0.1\nSwitch 1 \"a\"", 2, NetErrorKind::SwitchAddress),
        (
            "address=::7\nHca 1 \"a\"\naddress=0:0::7\nHca 1 \"b\"",
            4,
            NetErrorKind::SameAddress(core::net::IpAddr::from([0, 0, 0, 0, 0, 0, 0, 7])),
        ),
    ];
    for (text, line, kind) in cases {
        let error = error(text);
        assert_eq!((error.line, &error.kind), (line, &kind), "{text}");
        assert!(error.to_string().starts_with(&format!("line {line}: ")));
    }
}
