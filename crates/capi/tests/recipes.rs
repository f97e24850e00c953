//! The recipes of the documents, used as they say.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{command, gcc, headers, library, output, scratch, skip};

fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes")
}

/// A command that finds `feroce` on its path, with devices at this address.
fn with_feroce(program: &str, address: &str) -> Command {
    let place = command().parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([place].into_iter().chain(std::env::split_paths(&path)));
    let mut made = Command::new(program);
    made.env("PATH", path.expect("plain paths")).env("FEROCE_LIB", library());
    made.env("FEROCE_ADDRESS", address);
    made
}

/// Runs a command, which must succeed, and returns what it prints.
fn succeed(command: &mut Command, package: &str) -> Option<String> {
    let output = output(command, package)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}\n{errors}");
    Some(text)
}

#[test]
fn ctest_runs_programs_with_and_without_loss() {
    let run = || {
        headers()?;
        let build = scratch("recipe-cmake");
        let cmake = || with_feroce("cmake", "127.122.2.1");
        succeed(cmake().arg("-S").arg(recipes()).arg("-B").arg(&build), "cmake")?;
        succeed(cmake().arg("--build").arg(&build), "cmake")?;
        let mut ctest = with_feroce("ctest", "127.122.2.1");
        succeed(ctest.arg("--test-dir").arg(&build).arg("--output-on-failure"), "cmake")
    };
    if let Some(report) = run() {
        assert!(report.contains("100% tests passed, 0 tests failed out of 4"), "{report}");
    }
}

#[test]
fn pytest_runs_a_program_with_and_without_loss() {
    let run = || {
        headers()?;
        let program = scratch("recipe-pytest").join("rc_write");
        let source = recipes().join("../../examples/c/rc_write.c");
        let (source, shown) = (source.display().to_string(), program.display().to_string());
        gcc(&["-O2", &source, "-o", &shown, "-libverbs", "-lrdmacm"])?;
        let mut pytest = with_feroce("pytest-3", "127.122.2.2");
        pytest.args(["-q", "-p", "no:cacheprovider"]).arg(recipes());
        pytest.env("PYTHONDONTWRITEBYTECODE", "1").env("RDMA_PROGRAM", &program);
        succeed(&mut pytest, "python3-pytest")
    };
    if let Some(report) = run() {
        assert!(report.contains("3 passed"), "{report}");
    }
}

/// What a file of YAML holds.
fn documents(name: &str) -> Option<Value> {
    let script = "import json, sys, yaml\n\
                  print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut python = Command::new("/usr/bin/python3");
    let read = output(python.args(["-c", script]).arg(recipes().join(name)), "python3-yaml")?;
    if String::from_utf8_lossy(&read.stderr).contains("No module named 'yaml'") {
        return skip("yaml for Python", "python3-yaml");
    }
    Some(serde_json::from_slice(&read.stdout).expect("JSON"))
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|text| text.as_str().expect("text").to_owned()).collect()
}

/// A project as the jobs expect it: a `CMakeLists.txt` whose tests are RDMA programs.
fn project(name: &str) -> PathBuf {
    let folder = scratch(name);
    let recipe = std::fs::read_to_string(recipes().join("CMakeLists.txt")).expect("a recipe");
    let sources = recipes().join("../../examples/c");
    let recipe = recipe.replace("${CMAKE_CURRENT_SOURCE_DIR}/../../examples/c", "${PROJECT}");
    let recipe = recipe.replace("${PROJECT}", &sources.display().to_string());
    std::fs::write(folder.join("CMakeLists.txt"), recipe).expect("a file");
    folder
}

/// Runs lines of a job in a shell, as runners do: the first that fails ends the job.
fn job(lines: &[String], name: &str, address: &str) -> Option<String> {
    headers()?;
    let folder = project(name);
    let mut said = String::new();
    for line in lines {
        let mut shell = with_feroce("bash", address);
        shell.args(["-e", "-o", "pipefail", "-c", line]).current_dir(&folder);
        said += &succeed(&mut shell, "cmake")?;
    }
    Some(said)
}

/// Every line but those that fetch something from the network.
#[test]
fn the_job_of_github_runs() {
    let Some(documents) = documents("github-actions.yml") else { return };
    let steps = documents[0]["jobs"]["test"]["steps"].as_array().expect("steps");
    let lines: Vec<String> =
        steps.iter().filter_map(|step| step["run"].as_str()).map(str::to_owned).collect();
    let (fetching, rest): (Vec<_>, Vec<_>) = lines
        .into_iter()
        .partition(|line| line.contains("cargo +") || line.starts_with("sudo apt-get"));
    assert_eq!((fetching.len(), rest.len()), (2, 4), "{fetching:?} {rest:?}");
    if let Some(said) = job(&rest, "recipe-github", "127.122.2.3") {
        assert_eq!(said.matches("100% tests passed").count(), 2, "{said}");
    }
}

#[test]
fn the_job_of_gitlab_runs() {
    let Some(documents) = documents("gitlab-ci.yml") else { return };
    let lines = texts(&documents[0]["rdma"]["script"]);
    assert_eq!(lines.len(), 3, "{lines:?}");
    if let Some(said) = job(&lines, "recipe-gitlab", "127.122.2.4") {
        assert!(said.contains("100% tests passed"), "{said}");
    }
    let kept = texts(&documents[0]["rdma"]["artifacts"]["paths"]);
    assert_eq!(kept, ["packets-*.pcapng"], "what --pcap writes");
}

/// The two pods, as processes in two network namespaces: with the user, the rights and the
/// arguments of the manifest, and the name of the service in `/etc/hosts`.
#[test]
fn the_pods_of_kubernetes_measure() {
    let Some(documents) = documents("kubernetes.yaml") else { return };
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start processes of other users");
        return;
    }
    let find = |kind: &str| {
        let documents = documents.as_array().into_iter().flatten();
        documents.clone().find(|d| d["kind"] == kind).expect("a document").clone()
    };
    let (service, server, client) = (find("Service"), find("Pod"), find("Job"));
    assert_eq!(service["spec"]["selector"], server["metadata"]["labels"]);
    let server = &server["spec"]["containers"][0];
    let client = &client["spec"]["template"]["spec"]["containers"][0];
    for pod in [server, client] {
        let rights = &pod["securityContext"];
        assert_eq!(rights["capabilities"]["drop"][0], "ALL", "{pod}");
        assert_eq!(rights["runAsUser"], 1000, "{pod}");
    }
    let host = service["metadata"]["name"].as_str().expect("a name");
    let mut script = with_feroce("timeout", "");
    script.env_remove("FEROCE_ADDRESS").current_dir(scratch("recipe-kubernetes"));
    script.args(["60", "unshare", "--net", "--mount", "--propagation", "private", "sh"]);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pods.sh");
    script.arg(tests).arg(host);
    // Fewer messages than perftest sends by itself: what is measured does not matter here.
    for pod in [server, client] {
        script.arg(texts(&pod["args"]).join(" ") + " -n 100");
    }
    if let Some(said) = succeed(&mut script, "perftest") {
        assert!(said.contains("BW average") && said.contains("65536"), "{said}");
    }
}
