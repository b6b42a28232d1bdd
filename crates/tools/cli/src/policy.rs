//! `provost policy`: what happens to calls.

use std::io::Read;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::test_policy_response::Denied;
use provost_admin::v1::{
    AttachPolicyRequest, AttachedPolicy, Change, DetachPolicyRequest, ListEnginesRequest,
    ListPoliciesRequest, ListPoliciesResponse, OrderPoliciesRequest, Policy, SetPolicyRequest,
    TestPolicyRequest, TestPolicyResponse,
};

use crate::watch::{Listing, Shown, fact, show};
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::{Exit, Failure, complain};
use provost_terminal::numbers;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Cell, Look, Table, broken, clean};

/// Largest configuration that is read, in bytes: a list of a million values is in a file of its own.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

const ATTACH_EXAMPLES: &str = "\
Patterns: * stands for any run of characters, ? for one. Without --app, --service and --method the policy is for
everything. The order of policies is that in which an outgoing call meets them.

Examples:
  provost policy attach --kind rate-limit --service kv.Kv --set requests_per_second=100
  provost policy attach --kind rate-limit --name shop-limit --app 'shop-*' --service kv.Kv --method Put \\
      --side client --set requests_per_second=100 --set burst=20
  provost policy attach --kind access --name acl --config acl.toml --position 0 --dry-run
  provost policy example rate-limit > limit.toml            every key of a kind, with its default";

const SET_EXAMPLES: &str = "\
What the policy has counted and holds stays. With --set the other keys stay as they are; with --config the file is the
whole new configuration.

Examples:
  provost policy set limit --set requests_per_second=500
  provost policy set limit --config limit.toml --dry-run    shows before and after, changes nothing";

const TEST_EXAMPLES: &str = "\
Calls that a tap has sampled are run through the policy, which is not attached: what would it have done? Needs an
attached tap: provost policy attach --kind tap

Examples:
  provost policy test --kind access --config acl.toml
  provost policy test --kind rate-limit --set requests_per_second=10 --tap tap --samples 1000 --json";

/// `provost policy …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the policies in their order
    #[command(
        after_help = "Examples:\n  provost policy list\n  provost policy list --watch 5\n  provost policy list --json"
    )]
    List(Listing),
    /// Show a policy with its configuration and metrics
    #[command(after_help = "Examples:\n  provost policy show limit\n  provost policy show limit --watch")]
    Show {
        /// Its name
        name: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Attach a policy to live datapaths and those to come
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(Attach),
    /// Take a policy away
    #[command(after_help = "Examples:\n  provost policy detach limit")]
    Detach {
        /// Its name
        name: String,
        #[command(flatten)]
        target: Target,
    },
    /// Give a policy another configuration
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// Its name
        name: String,
        #[command(flatten)]
        config: ConfigArguments,
        /// Only check, and show before and after
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Put the policies into another order
    #[command(after_help = "Examples:\n  provost policy order acl limit metrics")]
    Order {
        /// The names of all policies, the first that an outgoing call meets first
        #[arg(required = true)]
        names: Vec<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Run sampled calls through a policy that is not attached
    #[command(after_help = TEST_EXAMPLES)]
    Test(Test),
    /// Show every key of a kind of policy with its default
    #[command(after_help = "Examples:\n  provost policy example rate-limit > limit.toml")]
    Example {
        /// The kind, such as rate-limit
        kind: String,
        #[command(flatten)]
        target: Target,
    },
}

/// What is attached, and where.
#[derive(Args, Debug)]
pub(crate) struct PolicyArguments {
    /// The kind, such as rate-limit (`provost engine list` shows all)
    #[arg(long)]
    kind: String,
    /// Its name on the node [default: the kind]
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Version of the kind's code [default: the newest]
    #[arg(
        long = "kind-version",
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true
    )]
    version: u32,
    /// Apps to which it applies, by a pattern of their names
    #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
    app: String,
    /// Services to which it applies, by a pattern of their names
    #[arg(long, value_name = "PATTERN", default_value = "", hide_default_value = true)]
    service: String,
    /// Methods to which it applies (Get, /kv.Kv/Get, /kv.Kv/*); may be given several times
    #[arg(long = "method", value_name = "PATTERN")]
    methods: Vec<String>,
    /// The side of calls on which it applies
    #[arg(long, value_parser = ["client", "server", "both"], default_value = "both")]
    side: String,
    /// What becomes of calls if the policy itself fails
    #[arg(long, value_parser = ["deny", "pass"], default_value = "deny")]
    on_fault: String,
    #[command(flatten)]
    config: ConfigArguments,
}

/// A policy's configuration.
#[derive(Args, Debug)]
pub(crate) struct ConfigArguments {
    /// A file with the configuration (TOML); - for standard input
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A key of the configuration, such as requests_per_second=100 or key.metadata=\"x-user\"; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// `provost policy attach`.
#[derive(Args, Debug)]
pub(crate) struct Attach {
    #[command(flatten)]
    policy: PolicyArguments,
    /// How many policies come before it [default: all]
    #[arg(long, value_name = "NUMBER")]
    position: Option<u32>,
    /// Only check, and say what would be done
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    target: Target,
}

/// `provost policy test`.
#[derive(Args, Debug)]
pub(crate) struct Test {
    #[command(flatten)]
    policy: PolicyArguments,
    /// The tap whose samples are used [default: any]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tap: String,
    /// How many samples at most [default: all that are kept]
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    samples: u32,
    #[command(flatten)]
    target: Target,
}

/// Runs one.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(listing) => show(&listing, async |node: &mut Node| list(node).await).await,
        Command::Show { name, listing } => {
            show(&listing, async |node: &mut Node| {
                Ok(One(find(node, &name).await?))
            })
            .await
        }
        Command::Attach(asked) => attach(asked).await,
        Command::Detach { name, target } => {
            let mut node = Node::connect(&target).await?;
            let done = node
                .call(DetachPolicyRequest { name }, AdminClient::detach_policy)
                .await?;
            print_change(&done, &target)
        }
        Command::Set {
            name,
            config,
            dry_run,
            target,
        } => set(name, &config, dry_run, &target).await,
        Command::Order { names, target } => {
            let mut node = Node::connect(&target).await?;
            let done = node
                .call(OrderPoliciesRequest { names }, AdminClient::order_policies)
                .await?;
            print_change(&done, &target)
        }
        Command::Test(asked) => test(asked).await,
        Command::Example { kind, target } => example(&kind, &target).await,
    }
}

async fn list(node: &mut Node) -> Result<ListPoliciesResponse, Failure> {
    node.call(ListPoliciesRequest {}, AdminClient::list_policies)
        .await
}

/// The policy of a name.
pub(crate) async fn find(node: &mut Node, name: &str) -> Result<AttachedPolicy, Failure> {
    let attached = list(node).await?.policies;
    let named = |one: &AttachedPolicy| one.policy.as_ref().is_some_and(|policy| policy.name == name);
    let names: Vec<_> = attached
        .iter()
        .filter_map(|one| one.policy.as_ref().map(|policy| policy.name.clone()))
        .collect();
    attached.into_iter().find(named).ok_or_else(|| {
        let known = if names.is_empty() {
            "none is attached".to_owned()
        } else {
            format!("attached are {}", names.join(", "))
        };
        Failure::new(
            Exit::Refused,
            format!("no policy has the name \"{name}\"; {known}"),
        )
    })
}

async fn attach(asked: Attach) -> Result<(), Failure> {
    let policy = asked.policy.into_policy()?;
    let mut node = Node::connect(&asked.target).await?;
    let request = AttachPolicyRequest {
        policy: Some(policy),
        position: asked.position,
        dry_run: asked.dry_run,
    };
    let done = node.call(request, AdminClient::attach_policy).await?;
    print_change(&done, &asked.target)
}

async fn set(name: String, config: &ConfigArguments, dry_run: bool, target: &Target) -> Result<(), Failure> {
    if config.config.is_none() && config.set.is_empty() {
        return Err(Failure::usage(
            "give the new configuration: --set KEY=VALUE, or --config FILE",
        ));
    }
    let mut node = Node::connect(target).await?;
    let before = match config.config {
        Some(_) => String::new(),
        None => find(&mut node, &name).await?.policy.unwrap_or_default().config,
    };
    let request = SetPolicyRequest {
        config: config.toml(&before)?,
        name,
        dry_run,
    };
    let done = node.call(request, AdminClient::set_policy).await?;
    print_change(&done, target)
}

async fn test(asked: Test) -> Result<(), Failure> {
    let policy = asked.policy.into_policy()?;
    let mut node = Node::connect(&asked.target).await?;
    let request = TestPolicyRequest {
        policy: Some(policy),
        tap: asked.tap,
        samples_max: asked.samples,
    };
    let tested = node.call(request, AdminClient::test_policy).await?;
    print(&if asked.target.json {
        json_document(&tested)?
    } else {
        tested.draw(Canvas::of_stdout())
    })
}

async fn example(kind: &str, target: &Target) -> Result<(), Failure> {
    let mut node = Node::connect(target).await?;
    let known = node
        .call(ListEnginesRequest {}, AdminClient::list_engines)
        .await?
        .engines;
    let policies = known.iter().filter(|engine| !engine.example.is_empty());
    let newest = policies
        .clone()
        .filter(|engine| engine.kind == kind)
        .max_by_key(|engine| engine.version);
    match newest {
        Some(engine) if target.json => print(&json_document(engine)?),
        Some(engine) => print(&engine.example),
        None => {
            let mut kinds: Vec<_> = policies.map(|engine| engine.kind.as_str()).collect();
            kinds.dedup();
            let message = format!(
                "there is no kind of policy \"{kind}\"; the node has {}",
                kinds.join(", ")
            );
            Err(Failure::new(Exit::Refused, message))
        }
    }
}

impl PolicyArguments {
    fn into_policy(self) -> Result<Policy, Failure> {
        let config = self.config.toml("")?;
        let name = if self.name.is_empty() {
            self.kind.clone()
        } else {
            self.name
        };
        Ok(Policy {
            name,
            kind: self.kind,
            version: self.version,
            config,
            app: self.app,
            service: self.service,
            methods: self.methods,
            side: self.side,
            on_fault: self.on_fault,
        })
    }
}

impl ConfigArguments {
    /// The configuration: the file, or what was before, with each key that was set.
    fn toml(&self, before: &str) -> Result<String, Failure> {
        let text = match &self.config {
            Some(path) => read(path)?,
            None => before.to_owned(),
        };
        if self.set.is_empty() {
            return Ok(text);
        }
        let mut table: toml::Table = toml::from_str(&text).map_err(|error| {
            Failure::new(Exit::Refused, format!("the configuration is not TOML: {error}"))
        })?;
        for set in &self.set {
            merge(&mut table, parse_set(set)?);
        }
        toml::to_string(&table).map_err(|error| Failure::failed(format!("cannot write TOML: {error}")))
    }
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    let mut text = String::new();
    let limit = CONFIG_BYTES_MAX + 1;
    let read = if path.as_os_str() == "-" {
        std::io::stdin().take(limit).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_string(&mut text))
    };
    match read {
        Ok(bytes) if bytes as u64 > CONFIG_BYTES_MAX => Err(Failure::usage(format!(
            "--config {}: more than {} MiB",
            path.display(),
            CONFIG_BYTES_MAX >> 20
        ))),
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::usage(format!("--config {}: {error}", path.display()))),
    }
}

/// `KEY=VALUE`, where the value is TOML, or a string that needs no quotes.
fn parse_set(set: &str) -> Result<toml::Table, Failure> {
    let Some((key, value)) = set.split_once('=') else {
        return Err(Failure::usage(format!(
            "--set {set}: write KEY=VALUE, such as requests_per_second=100"
        )));
    };
    let (key, value) = (key.trim(), value.trim());
    if let Ok(table) = toml::from_str(&format!("{key} = {value}")) {
        return Ok(table);
    }
    let quoted = toml::Value::String(value.to_owned());
    toml::from_str(&format!("{key} = {quoted}")).map_err(|_| {
        Failure::usage(format!(
            "--set {set}: \"{key}\" is no key; write it as in TOML, such as burst or key.field"
        ))
    })
}

/// Puts the keys of one table into another, table by table.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Prints what a change did.
pub(crate) fn print_change(done: &Change, target: &Target) -> Result<(), Failure> {
    for warning in done.warnings.iter().filter(|_| !target.json) {
        complain(&format!("warning: {}", clean(warning)));
    }
    print(&if target.json {
        json_document(done)?
    } else {
        describe_change(done, Canvas::of_stdout())
    })
}

fn describe_change(done: &Change, canvas: Canvas) -> String {
    let mut out = format!("{}\n", clean(&done.summary));
    if done.datapaths > 0 && done.pause_us_max > 0.0 {
        let pause = format!(
            "a datapath stood still for {} at most (half of them for under {})",
            numbers::time_us(done.pause_us_max),
            numbers::time_us(done.pause_us_p50)
        );
        out += &(Look::Faint.paint(&pause, canvas) + "\n");
    }
    if done.number == 0 {
        for (name, text) in [("before", &done.before), ("after", &done.after)] {
            if !text.is_empty() {
                out += &format!(
                    "{}\n{}",
                    Look::Heading.paint(&format!("{name}:"), canvas),
                    indented(text)
                );
            }
        }
    }
    out
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}\n", clean(line))).collect()
}

impl Shown for ListPoliciesResponse {
    fn draw(&self, canvas: Canvas) -> String {
        if self.policies.is_empty() {
            return "no policy is attached\n".to_owned();
        }
        let mut table = Table::new(&[
            ("#", Align::Right),
            ("NAME", Align::Left),
            ("KIND", Align::Left),
            ("APPLIES TO", Align::Left),
            ("DATAPATHS", Align::Right),
            ("FROM", Align::Left),
            ("CONFIGURATION", Align::Left),
        ]);
        for attached in &self.policies {
            let policy = attached.policy.clone().unwrap_or_default();
            let kind = match policy.version {
                0 => policy.kind.clone(),
                version => format!("{}@{version}", policy.kind),
            };
            let unused = if attached.datapaths == 0 {
                Look::Faint
            } else {
                Look::Normal
            };
            table.row([
                attached.position.into(),
                (&policy.name).into(),
                kind.into(),
                applies_to(&policy).into(),
                Cell::new(attached.datapaths.to_string(), unused),
                (&attached.origin).into(),
                one_line(&policy.config).into(),
            ]);
        }
        table.draw(canvas)
    }
}

/// Where a policy applies, in a few words.
fn applies_to(policy: &Policy) -> String {
    let any = |pattern: &str| pattern.is_empty() || pattern == "*";
    let mut parts = Vec::new();
    if !any(&policy.app) {
        parts.push(format!("app {}", policy.app));
    }
    if !any(&policy.service) {
        parts.push(policy.service.clone());
    }
    if !policy.methods.is_empty() {
        parts.push(policy.methods.join("|"));
    }
    if matches!(policy.side.as_str(), "client" | "server") {
        parts.push(format!("{} side", policy.side));
    }
    if parts.is_empty() {
        "everything".to_owned()
    } else {
        parts.join(" ")
    }
}

/// A configuration on a line.
fn one_line(config: &str) -> String {
    let lines = config.lines().map(str::trim);
    let keys: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    keys.join("; ")
}

/// A single policy.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct One(AttachedPolicy);

impl Shown for One {
    fn draw(&self, canvas: Canvas) -> String {
        let policy = self.0.policy.clone().unwrap_or_default();
        let mut out = fact("name", &policy.name, canvas);
        out += &fact(
            "kind",
            &format!("{} version {}", policy.kind, policy.version),
            canvas,
        );
        out += &fact("applies to", &applies_to(&policy), canvas);
        out += &fact("datapaths", &self.0.datapaths.to_string(), canvas);
        for exception in &self.0.exceptions {
            out += &fact("but for", exception, canvas);
        }
        out += &fact("attached by", &self.0.origin, canvas);
        out += &fact(
            "on fault",
            if policy.on_fault.is_empty() {
                "deny"
            } else {
                &policy.on_fault
            },
            canvas,
        );
        if !policy.config.is_empty() {
            out += &format!("\n{}", indented(&policy.config));
        }
        if !self.0.metrics.is_empty() {
            let mut table = Table::new(&[
                ("METRIC", Align::Left),
                ("VALUE", Align::Right),
                ("LABELS", Align::Left),
            ]);
            for metric in &self.0.metrics {
                let mut labels: Vec<_> = metric
                    .labels
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                labels.sort();
                table.row([
                    (&metric.name).into(),
                    metric.value.into(),
                    labels.join(" ").into(),
                ]);
            }
            out += &format!("\n{}", table.draw(canvas));
        }
        out
    }
}

impl Shown for TestPolicyResponse {
    fn draw(&self, canvas: Canvas) -> String {
        let denied: u32 = self.denied.iter().map(|one| one.count).sum();
        let mut out = format!(
            "{}: {} would pass, {} would wait first, {denied} would be denied\n",
            numbers::plural(self.samples.into(), "sampled call"),
            self.passed,
            self.held
        );
        if self.skipped > 0 {
            let left_out = format!(
                "left out: {} that the policy does not apply to, or that the tap did not keep whole",
                numbers::plural(self.skipped.into(), "sample")
            );
            out += &(broken(&left_out, 0, canvas) + "\n");
        }
        for finding in findings(&self.denied) {
            out += &format!("\n{}", finding.draw(canvas));
        }
        out
    }
}

/// Calls that a policy would deny for the same reason.
struct DeniedGroup<'a> {
    code: &'a str,
    reason: &'a str,
    denied: Vec<&'a Denied>,
}

impl DeniedGroup<'_> {
    fn count(&self) -> u32 {
        self.denied.iter().map(|one| one.count).sum()
    }

    /// The reason, and below it whose calls they are.
    fn draw(&self, canvas: Canvas) -> String {
        let heading = format!("{} × {}: {}", self.count(), clean(self.code), clean(self.reason));
        let mut table = Table::new(&[
            ("  DENIED", Align::Right),
            ("METHOD", Align::Left),
            ("APP", Align::Left),
        ]);
        for one in &self.denied {
            table.row([one.count.into(), (&one.method).into(), (&one.app).into()]);
        }
        format!(
            "{}\n{}",
            Look::Heading.paint(&broken(&heading, 2, canvas), canvas),
            table.draw(canvas)
        )
    }
}

/// What a dry run has found, by reason, the most frequent first.
fn findings(denied: &[Denied]) -> Vec<DeniedGroup<'_>> {
    let mut groups: Vec<DeniedGroup<'_>> = Vec::new();
    for one in denied {
        let same = |group: &&mut DeniedGroup<'_>| (group.code, group.reason) == (&*one.code, &*one.reason);
        match groups.iter_mut().find(same) {
            Some(group) => group.denied.push(one),
            None => groups.push(DeniedGroup {
                code: &one.code,
                reason: &one.reason,
                denied: vec![one],
            }),
        }
    }
    for group in &mut groups {
        group.denied.sort_by_key(|one| std::cmp::Reverse(one.count));
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.count()));
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_takes_toml_values_and_bare_strings() {
        let set = |text: &str| toml::to_string(&parse_set(text).unwrap()).unwrap();
        assert_eq!(set("requests_per_second=100"), "requests_per_second = 100\n");
        assert_eq!(set("ratio = 0.5"), "ratio = 0.5\n");
        assert_eq!(set("mode=queue"), "mode = \"queue\"\n");
        assert_eq!(set("mode=\"queue\""), "mode = \"queue\"\n");
        assert_eq!(set("rule=request.key == 'a'"), "rule = \"request.key == 'a'\"\n");
        assert_eq!(set("key.metadata=x-user"), "[key]\nmetadata = \"x-user\"\n");
        assert_eq!(set("methods=[\"a\", \"b\"]"), "methods = [\"a\", \"b\"]\n");
        assert_eq!(parse_set("burst").unwrap_err().exit, Exit::Usage);
        assert_eq!(parse_set("a b=1").unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn a_configuration_that_is_too_long_is_refused_and_not_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let length = |bytes: u64| {
            std::fs::write(file.path(), "#\n".repeat(bytes as usize / 2)).unwrap();
            read(&file.path().to_owned()).map(|text| text.len() as u64)
        };
        assert_eq!(length(CONFIG_BYTES_MAX), Ok(CONFIG_BYTES_MAX));
        let failure = length(CONFIG_BYTES_MAX + 2).unwrap_err();
        assert!(
            failure.exit == Exit::Usage && failure.message.ends_with("more than 4 MiB"),
            "{failure}"
        );
    }

    #[test]
    fn set_changes_single_keys_of_what_was_there() {
        let arguments = ConfigArguments {
            config: None,
            set: vec!["burst=5".into(), "key.field=name".into()],
        };
        let after = arguments
            .toml("requests_per_second = 7\nburst = 1\n[key]\nmetadata = \"a\"\n")
            .unwrap();
        let expected = "burst = 5\nrequests_per_second = 7\n\n[key]\nfield = \"name\"\nmetadata = \"a\"\n";
        let (after, expected): (toml::Table, toml::Table) =
            (toml::from_str(&after).unwrap(), toml::from_str(expected).unwrap());
        assert_eq!(after, expected);
    }

    #[test]
    fn a_dry_run_is_grouped_by_reason_and_fits_a_terminal() {
        let denied = |method: &str, app: &str, reason: &str, count| Denied {
            method: method.into(),
            app: app.into(),
            code: "PERMISSION_DENIED".into(),
            reason: reason.into(),
            count,
        };
        let long = "denied by policy acl: rule \"reserved\": request.key.startsWith('U+') && !(peer.app in ['shop'])";
        let tested = TestPolicyResponse {
            samples: 1,
            denied: vec![
                denied("/kv.Kv/Get", "shop", long, 2),
                denied("/kv.Kv/Put", "shop", "denied by policy acl: no rule allows it", 4),
                denied("/kv.Kv/Put", "billing", long, 5),
            ],
            skipped: 2,
            ..TestPolicyResponse::default()
        };
        let drawn = tested.draw(Canvas::plain());
        let expected = format!(
            "1 sampled call: 0 would pass, 0 would wait first, 11 would be denied\n\
             left out: 2 samples that the policy does not apply to, or that the tap did not keep whole\n\n\
             7 × PERMISSION_DENIED: {long}\n\
             \x20 DENIED  METHOD      APP\n\
             \x20      5  /kv.Kv/Put  billing\n\
             \x20      2  /kv.Kv/Get  shop\n\n\
             4 × PERMISSION_DENIED: denied by policy acl: no rule allows it\n\
             \x20 DENIED  METHOD      APP\n\
             \x20      4  /kv.Kv/Put  shop\n"
        );
        assert_eq!(drawn, expected);
        let narrow = tested.draw(Canvas {
            width: Some(80),
            ..Canvas::plain()
        });
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(
            narrow.contains("\n  "),
            "the reason goes on in the next line: {narrow}"
        );
        assert!(narrow.contains("'shop'])"), "no reason is cut: {narrow}");
    }

    #[test]
    fn policies_are_listed_in_their_order_with_where_they_apply() {
        let attached = |position, name: &str, policy: Policy| AttachedPolicy {
            policy: Some(Policy {
                name: name.into(),
                ..policy
            }),
            position,
            datapaths: 12 * (1 - position),
            origin: "configuration".into(),
            ..AttachedPolicy::default()
        };
        let limit = Policy {
            kind: "rate-limit".into(),
            version: 2,
            config: "# per node\nrequests_per_second = 100\nburst = 5\n".into(),
            app: "shop-*".into(),
            service: "kv.Kv".into(),
            methods: vec!["Get".into(), "Put".into()],
            side: "client".into(),
            ..Policy::default()
        };
        let null = Policy {
            kind: "null".into(),
            service: "*".into(),
            side: "both".into(),
            ..Policy::default()
        };
        let listed = ListPoliciesResponse {
            policies: vec![attached(0, "limit", limit), attached(1, "null", null)],
        };
        let expected = "\
#  NAME   KIND          APPLIES TO                             DATAPATHS  FROM           CONFIGURATION
0  limit  rate-limit@2  app shop-* kv.Kv Get|Put client side         12  configuration  requests_per_second = 100; burst = 5
1  null   null          everything                                    0  configuration
";
        let drawn = listed.draw(Canvas::plain());
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&drawn), squeezed(expected), "{drawn}");
    }

    #[test]
    fn a_change_says_what_stood_still_and_a_dry_run_shows_both_states() {
        let mut done = Change {
            summary: "attached limit to 3 datapaths".into(),
            datapaths: 3,
            pause_us_p50: 12.0,
            pause_us_max: 150.0,
            number: 4,
            ..Change::default()
        };
        assert_eq!(
            describe_change(&done, Canvas::plain()),
            "attached limit to 3 datapaths\na datapath stood still for 150 µs at most (half of them for under 12 µs)\n"
        );
        done = Change {
            summary: "would set limit".into(),
            before: "burst = 1\n".into(),
            after: "burst = 2\n".into(),
            ..Change::default()
        };
        assert_eq!(
            describe_change(&done, Canvas::plain()),
            "would set limit\nbefore:\n  burst = 1\nafter:\n  burst = 2\n"
        );
    }
}
