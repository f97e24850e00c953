//! The ways in which programs get at the library: linked at build time, by `dlopen` and `dlsym`,
//! and by `dlopen` and `dlvsym`, under each of its names; with the directory first in the search
//! path, and with nothing but the preload.

use crate::common;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Asks for the device list and the event channel as a linked program does.
const LINKED: &str = r#"
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
int main(void)
{
    int n = -1;
    struct ibv_device **list = ibv_get_device_list(&n);
    if (list) ibv_free_device_list(list);
    printf("%s\n", rdma_event_str(RDMA_CM_EVENT_ESTABLISHED) ? "named" : "nameless");
    return 0;
}
"#;

/// Opens the library by the name in the first argument and looks each further argument up,
/// `name@version` or `name`; says which file each was found in.
const LOADED: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) { puts(dlerror()); return 1; }
    for (int i = 2; i < argc; i++) {
        char *version = strchr(argv[i], '@');
        if (version) *version++ = 0;
        void *symbol = version ? dlvsym(library, argv[i], version) : dlsym(library, argv[i]);
        Dl_info info;
        if (!symbol) { puts(dlerror()); return 1; }
        if (!dladdr(symbol, &info)) return 2;
        puts(info.dli_fname);
    }
    return 0;
}
"#;

fn compile(name: &str, source: &str, libraries: &[&str]) -> Option<PathBuf> {
    let folder = common::scratch(name);
    let (from, to) = (folder.join("main.c"), folder.join("main"));
    fs::write(&from, source).expect("written");
    let paths = [from.to_str().expect("text"), "-o", to.to_str().expect("text")];
    common::gcc(&[&paths[..], libraries].concat())?;
    Some(to)
}

/// Runs a program that must succeed and must not complain; gives back what it wrote.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {:?}\n{text}{errors}", output.status);
    assert!(errors.is_empty(), "{command:?}: {errors}");
    text
}

/// The file that `ldd` shows for each of our names, when the program runs.
fn mapped(program: &Path, settings: &[(&str, &Path)]) -> Vec<String> {
    let mut command = Command::new(program);
    command.env("LD_TRACE_LOADED_OBJECTS", "1").envs(settings.iter().copied());
    let text = run(&mut command);
    let ours = text.lines().filter(|line| line.contains("ibverbs") || line.contains("rdmacm"));
    ours.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_linked_program_takes_ours() {
    if common::headers().is_none() {
        return;
    }
    let Some(program) = compile("linked", LINKED, &["-libverbs", "-lrdmacm"]) else { return };
    let folder = common::directory("linked-dir");
    let settings = [("LD_LIBRARY_PATH", folder.as_path())];
    let files = mapped(&program, &settings);
    let folder_text = folder.display().to_string();
    assert!(!files.is_empty() && files.iter().all(|l| l.contains(&folder_text)), "{files:?}");
    run(Command::new(&program).envs(settings));
}

#[test]
fn a_program_that_loads_at_run_time_takes_ours_under_every_name() {
    let Some(program) = compile("loaded", LOADED, &["-ldl"]) else { return };
    let folder = common::directory("loaded-dir");
    for name in common::NAMES {
        let wanted: &[&str] = if name.starts_with("libibverbs") {
            &[
                "ibv_get_device_list",
                "ibv_get_device_list@IBVERBS_1.1",
                "ibv_reg_mr_iova2@IBVERBS_1.8",
                "ibv_query_ece@IBVERBS_1.10",
                "ibv_reg_dmabuf_mr@IBVERBS_1.12",
                "ibv_query_port_speed@IBVERBS_1.16",
                "ibv_query_gid_type@IBVERBS_PRIVATE_34",
                "ibv_query_gid_type@IBVERBS_PRIVATE_64",
            ]
        } else {
            &["rdma_create_id", "rdma_create_id@RDMACM_1.0", "rdma_establish@RDMACM_1.2"]
        };
        let mut command = Command::new(&program);
        let text = run(command.arg(name).args(wanted).env("LD_LIBRARY_PATH", &folder));
        assert_eq!(text.lines().count(), wanted.len());
        for line in text.lines() {
            assert_eq!(Path::new(line).parent(), Some(folder.as_path()), "{name}: {line}");
        }
    }
}

#[test]
fn the_preload_alone_serves_a_program_with_a_renamed_copy() {
    if common::headers().is_none() {
        return;
    }
    // A bundled copy: another file name and soname, the same versioned symbols.
    let bundle = common::scratch("bundle");
    let copy = bundle.join("libibverbs-1de1263b.so.1");
    let script = bundle.join("nodes.map");
    fs::write(&script, "IBVERBS_1.0 { }; IBVERBS_1.1 { global: ibv_*; } IBVERBS_1.0;")
        .expect("written");
    let source = bundle.join("copy.c");
    let body = "void *ibv_get_device_list(int *n) { *n = 77; return 0; }\n\
                void ibv_free_device_list(void *l) { (void)l; }\n";
    fs::write(&source, body).expect("written");
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let option = format!("-Wl,--version-script={}", text(&script));
    let soname = "-Wl,-soname,libibverbs-1de1263b.so.1";
    let args = ["-shared", "-fPIC", &text(&source), "-o", &text(&copy), &option, soname];
    if common::gcc(&args).is_none() {
        return;
    }
    let program = r#"
        #include <stdio.h>
        void *ibv_get_device_list(int *n);
        int main(void) { int n = -1; ibv_get_device_list(&n); printf("%d\n", n); return 0; }
    "#;
    let rpath = format!("-Wl,-rpath,{}", text(&bundle));
    let Some(program) = compile("bundled", program, &[&text(&copy), &rpath]) else { return };
    assert_eq!(run(&mut Command::new(&program)), "77\n");
    let preloaded = run(Command::new(&program).env("LD_PRELOAD", common::library()));
    assert_ne!(preloaded, "77\n");
}
