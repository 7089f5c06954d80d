use super::*;
use std::collections::BTreeMap;

const DEFAULTS: &str = r#"
[log]
kind = "embedded"
partitions = 8
"#;

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    log: Log,
    #[serde(default)]
    destinations: BTreeMap<String, Destination>,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(default)]
    store: Option<Store>,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Store {
    Embedded(Embedded),
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Embedded {
    dir: String,
    #[serde(default)]
    tls: Option<Tls>,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    ca: String,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    kind: Kind,
    partitions: u32,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Embedded,
    Kafka,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Destination {
    url: String,
    #[serde(default)]
    concurrency: u16,
}

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    source: String,
    to: Vec<String>,
}

fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Config, Vec<Problem>> {
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    read(Some(("f.toml".into(), text.into())), DEFAULTS, &variables)
}

fn problems(text: &str, variables: &[(&str, &str)]) -> Vec<String> {
    load_text(text, variables)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn later_layers_win() {
    assert_eq!(
        load_text("", &[]).unwrap().log,
        Log {
            kind: Kind::Embedded,
            partitions: 8
        }
    );
    let file = "[log]\npartitions = 4";
    assert_eq!(load_text(file, &[]).unwrap().log.partitions, 4);
    let config = load_text(
        file,
        &[
            ("FENCEPOST_LOG__KIND", "kafka"),
            ("FENCEPOST_LOG__PARTITIONS", "2"),
        ],
    );
    assert_eq!(
        config.unwrap().log,
        Log {
            kind: Kind::Kafka,
            partitions: 2
        }
    );
}

#[test]
fn variables_without_a_double_underscore_are_no_settings() {
    let injected = [
        ("FENCEPOST_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("FENCEPOST_CONFIG", "x"),
    ];
    assert!(load_text("", &injected).is_ok());
}

#[test]
fn one_mistake_each_with_its_key_and_place() {
    for (text, expected) in [
        (
            "[log]\n\npartition = 4",
            "log.partition: unknown key; did you mean `partitions`? allowed: `kind`, `partitions` (f.toml, line 3)",
        ),
        (
            "[log]\npartitions = \"4\"",
            "log.partitions: expected a whole number from 0 to 4294967295, found a string (f.toml, line 2)",
        ),
        (
            "[log]\npartitions = 4294967296",
            "log.partitions: expected a whole number from 0 to 4294967295, found integer `4294967296` (f.toml, line 2)",
        ),
        (
            "log = \"kafka\"",
            "log: expected a table, found a string (f.toml, line 1)",
        ),
        (
            "[log]\nkind = \"redis\"",
            "log.kind: `redis` is not one of `embedded`, `kafka` (f.toml, line 2)",
        ),
        (
            "[destinations.a]\nconcurrency = 1",
            "destinations.a.url: missing (f.toml, line 1)",
        ),
        (
            "routes = [{ source = \"a\", to = [] },\n{ source = 3, to = [] }]",
            "routes.1.source: expected a string, found integer `3` (f.toml, line 2)",
        ),
        (
            "[[routes]]\nsource = \"a\"\nto = []\n[[routes]]\nsource = \"a\"\nto = [1]",
            "routes.1.to.0: expected a string, found integer `1` (f.toml, line 6)",
        ),
        ("[log]\npartitions = = 4", "f.toml, line 2, column 14: "),
        ("[log]\n[log]", "f.toml, line 2, column 1: "),
    ] {
        let found = problems(text, &[]);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(expected), "{text}: {found:?}");
    }
}

/// Serde buffers such a table and forgets its keys.
#[test]
fn mistakes_in_a_table_with_a_kind_have_their_key_too() {
    for (text, expected) in [
        ("kind = 1", "store.kind: "),
        (
            "kind = \"x\"",
            "store.kind: `x` is not one of `embedded` (f.toml, line 2)",
        ),
        ("dir = \"d\"", "store.kind: missing (f.toml, line 1)"),
        ("kind = \"embedded\"", "store.dir: missing (f.toml, line 1)"),
        (
            "kind = \"embedded\"\ndir = 1",
            "store.dir: expected a string, found integer `1` (f.toml, line 3)",
        ),
        (
            "kind = \"embedded\"\ndir = \"d\"\ndirr = 1",
            "store.dirr: unknown key; did you mean `dir`? allowed: `dir`, `tls` (f.toml, line 4)",
        ),
        (
            "kind = \"embedded\"\ndir = \"d\"\n[store.tls]\nca = 1",
            "store.tls.ca: expected a string, found integer `1` (f.toml, line 5)",
        ),
        (
            "kind = \"embedded\"\ndir = \"d\"\n[store.tls]\nca = \"c\"\ncb = 1",
            "store.tls.cb: unknown key; did you mean `ca`? allowed: `ca` (f.toml, line 6)",
        ),
        (
            "kind = \"embedded\"\ndir = \"d\"\n[store.tls]",
            "store.tls.ca: missing (f.toml, line 4)",
        ),
    ] {
        let found = problems(&format!("[store]\n{text}"), &[]);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(expected), "{text}: {found:?}");
    }
}

#[test]
fn a_variable_is_named_as_the_place() {
    assert_eq!(
        problems("", &[("FENCEPOST_LOG__PARTITIONS", "many")]),
        [
            "log.partitions: expected a whole number from 0 to 4294967295, found a string (FENCEPOST_LOG__PARTITIONS)"
        ]
    );
    let found = problems("", &[("FENCEPOST_LOGS__KIND", "kafka")]);
    assert!(
        found[0].starts_with("logs: unknown key; did you mean `log`?"),
        "{found:?}"
    );
    assert!(found[0].ends_with("(FENCEPOST_LOGS__KIND)"), "{found:?}");
}

#[test]
fn all_mistakes_come_at_once() {
    let text = "colour = 1\n[log]\nkind = 1\npartitions = -1\n\
        [destinations.a]\nurl = 1\n[destinations.b]\nurl = \"u\"\nconcurrency = 70000\nx = 1\n\
        [[routes]]\nsource = 1\nto = []";
    let keys: Vec<_> = load_text(text, &[])
        .unwrap_err()
        .into_iter()
        .map(|problem| problem.key)
        .collect();
    for key in ["colour", "log.kind", "log.partitions", "destinations.a.url"] {
        assert!(keys.iter().any(|k| k == key), "{key} in {keys:?}");
    }
    assert!(
        keys.iter().any(|k| k == "destinations.b.concurrency"),
        "{keys:?}"
    );
    assert!(keys.iter().any(|k| k == "destinations.b.x"), "{keys:?}");
    assert!(keys.iter().any(|k| k == "routes.0.source"), "{keys:?}");
}

#[test]
fn a_missing_file_is_a_problem() {
    let found = load::<Config>(Some(Path::new("/nowhere/f.toml")), DEFAULTS).unwrap_err();
    assert!(
        found[0].message.starts_with("can not read /nowhere/f.toml"),
        "{found:?}"
    );
}
