#!/usr/bin/env bash
# What an operator does with the package, under a real systemd: /mnt has two packages (the second is a later version) and the
# programs of the example. Prints each step; the first that is not as it should be ends it.
set -euo pipefail

service=provostd.service
began=$SECONDS
step() { echo "-- $1 ($((SECONDS - began)) s)"; }
wrong() {
  echo "tryout.sh: $1" >&2
  systemctl status --no-pager "$service" >&2 || true
  journalctl --no-pager --lines 15 --unit "$service" >&2 || true
  exit 1
}
# within SECONDS WHAT COMMAND...: until it succeeds
within() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/tmp/last 2>&1; do
    [ "$SECONDS" -lt "$end" ] || wrong "$what: $(cat /tmp/last)"
    sleep 0.2
  done
}
refused() { # refused WHAT PATTERN COMMAND...: it fails, and says why
  local what=$1 pattern=$2
  shift 2
  ! "$@" >/tmp/last 2>&1 || wrong "$what was not refused"
  grep -q "$pattern" /tmp/last || wrong "$what was refused for another reason than '$pattern': $(cat /tmp/last)"
}
as() { # as USER COMMAND...
  local user=$1
  shift
  setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}
main_process() { systemctl show --property MainPID --value "$service"; }

# With this a container keeps packages from starting services.
rm -f /usr/sbin/policy-rc.d
# An index of all manual pages takes ten seconds.
rm -f /var/lib/man-db/auto-update

step "install"
dpkg --install /mnt/first.deb >/tmp/dpkg 2>&1 || wrong "$(cat /tmp/dpkg)"
within 20 "the service runs after the installation" systemctl is-active "$service"
provost status >/dev/null || wrong "the operator's command has no answer"
systemctl is-enabled --quiet "$service" || wrong "the service does not come back with the system"
man --where provostd provost-policy provost-insight-predict >/dev/null || wrong "no manual pages"
for file in prometheus/provost.rules.yml grafana/provost.json; do
  test -s "/usr/share/provost/$file" || wrong "no $file"
done

step "what comes beside the programs"
for program in provost provost-insight; do
  for file in bash-completion/completions/$program zsh/vendor-completions/_$program fish/vendor_completions.d/$program.fish; do
    grep -q "$program" "/usr/share/$file" || wrong "no completions in /usr/share/$file"
  done
done
# By sysusers.d and tmpfiles.d.
getent passwd provost | grep -q "node's managed RPC service" || wrong "the service has no user"
owner=$(stat --format %U:%G:%a /etc/provost/conf.d)
[ "$owner" = provost:provost:750 ] || wrong "/etc/provost/conf.d is of $owner"
provost config check /usr/share/doc/provost/provostd.toml >/tmp/last 2>&1 || wrong "the example: $(cat /tmp/last)"

step "what the service may do"
exposure=$(systemd-analyze security --no-pager "$service" | sed -n 's/.*exposure level for provostd.service: \([0-9.]*\).*/\1/p')
awk -v level="$exposure" 'BEGIN { exit !(level != "" && level <= 1.5) }' || wrong "systemd-analyze calls the exposure '$exposure', above 1.5"
grep -q '^Max core file size *0 *0' "/proc/$(main_process)/limits" || wrong "core dumps are on"

step "users"
for user in member stranger; do
  useradd --create-home "$user"
done
usermod --append --groups provost member
refused "an app of a user outside the group" "ermission denied" as stranger /mnt/hello-server
refused "the doctor of a user outside the group" "may not open the socket" as stranger provost doctor
provost doctor >/tmp/last 2>&1 || wrong "the doctor finds $(cat /tmp/last)"
cat >/etc/provost/conf.d/20-route.toml <<'TOML'
[[route]]
service = "hello.Greeter"
transport = "auto"
TOML

step "reload"
systemctl reload "$service" || wrong "reload"
as member /mnt/hello-server >/tmp/server 2>&1 &
server=$!
within 20 "a member of the group calls" as member /mnt/hello-client Ada
grep -q "Hello, Ada!" /tmp/last || wrong "another answer: $(cat /tmp/last)"
kill "$server"
wait "$server" || true
echo 'limits = 3' >/etc/provost/conf.d/30-broken.toml
refused "a broken configuration" "ob for $service failed" systemctl reload "$service"
systemctl is-active --quiet "$service" || wrong "a broken configuration ended the service"
rm /etc/provost/conf.d/30-broken.toml
systemctl reload "$service" || wrong "reload after the mend"

step "apps known by their units and programs"
cat >/etc/provost/conf.d/30-apps.toml <<'TOML'
[[app]]
name = "hello-server"
units = ["greeter.service"]
may_bind = ["hello.*"]

[[app]]
name = "hello-client"
users = ["member"]
executables = ["/mnt/hello-client"]
may_connect = ["hello.*"]
TOML
mkdir -p "/etc/systemd/system/$service.d"
cat >"/etc/systemd/system/$service.d/executables.conf" <<'UNIT'
[Service]
AmbientCapabilities=CAP_SYS_PTRACE
CapabilityBoundingSet=CAP_SYS_PTRACE
UNIT
systemctl daemon-reload
systemctl restart "$service" || wrong "restart"
within 20 "the service with a drop-in" provost status
refused "an app outside its unit" "hello-server" as member timeout 10 /mnt/hello-server
systemd-run --quiet --unit greeter --uid member --property SupplementaryGroups=provost /mnt/hello-server
within 20 "an app of the named unit serves one with the named program" as member /mnt/hello-client Ada
cp /mnt/hello-client /tmp/hello-client
refused "another program" "hello-client" as member timeout 10 /tmp/hello-client
systemctl stop greeter
rm "/etc/systemd/system/$service.d/executables.conf" /etc/provost/conf.d/30-apps.toml
systemctl daemon-reload
systemctl restart "$service" || wrong "restart without the drop-in"
as member /mnt/hello-server >/tmp/server 2>&1 &
server=$!
within 20 "a server after a restart" as member /mnt/hello-client Ada

step "config write"
provost policy attach --kind access-log --name log --set path=/var/log/provost/access.log >/dev/null ||
  wrong "no access log"
provost config write >/tmp/last 2>&1 || wrong "config write: $(cat /tmp/last)"
grep -q access-log /etc/provost/conf.d/90-policies.toml || wrong "config write wrote something else"

step "rotation of logs"
logged() { as member /mnt/hello-client Bob && test -s /var/log/provost/access.log; }
within 20 "calls are logged" logged
logrotate --force /etc/logrotate.d/provost || wrong "logrotate"
test -s /var/log/provost/access.log.1 || wrong "the log was not rotated"
within 20 "calls are logged after a rotation" logged
test -s /var/log/provost/audit.log -o -s /var/log/provost/audit.log.1 || wrong "what the operator did is not in the audit log"

step "a later version, under calls"
earlier=$(main_process)
touch /tmp/calling
call_on() {
  while [ -e /tmp/calling ]; do
    as member /mnt/hello-client Eve >>/tmp/answers 2>>/tmp/failures || echo "status $?" >>/tmp/failures
  done
}
call_on &
caller=$!
sleep 1
dpkg --install /mnt/second.deb >/tmp/dpkg 2>&1 || wrong "$(cat /tmp/dpkg)"
! grep "serves on" /tmp/dpkg || wrong "the later version did not take over"
sleep 1
rm /tmp/calling
wait "$caller"
[ ! -s /tmp/failures ] || wrong "calls failed: $(cat /tmp/failures)"
later=$(main_process)
[ "$earlier" != "$later" ] || wrong "the process is the same"
systemctl is-active --quiet "$service" || wrong "systemd lost the service"
kill -0 "$server" || wrong "the server, attached all the time, has ended: $(cat /tmp/server)"
echo "   $(wc -l </tmp/answers) calls of as many clients, none failed"

step "the service is killed, and comes back"
kill -9 "$(main_process)"
back() { systemctl is-active "$service" && [ "$(main_process)" != "$later" ] && provost status; }
within 20 "the service after a kill" back
provost policy list | grep -q access-log || wrong "the written policy is lost"

step "drain and stop"
provost policy attach --kind fault --name slow --set delay.percentage=100 --set delay.fixed_delay_ms=1500 --side client >/dev/null || wrong "no fault policy"
within 20 "a server after a kill" as member /mnt/hello-client Ada
as member /mnt/hello-client Zoe >/tmp/slow 2>&1 &
slow=$!
sleep 0.7
systemctl stop "$service" || wrong "stop"
wait "$slow" || wrong "a call that was in flight failed: $(cat /tmp/slow)"
grep -q "Hello, Zoe!" /tmp/slow || wrong "a call that was in flight has another answer: $(cat /tmp/slow)"
result=$(systemctl show --property Result --value "$service")
[ "$result" = success ] || wrong "the service ended by $result"
kill "$server" 2>/dev/null || true
wait "$server" 2>/dev/null || true
systemctl start "$service" || wrong "start"

step "remove"
dpkg --remove provost >/tmp/dpkg 2>&1 || wrong "$(cat /tmp/dpkg)"
! systemctl is-active --quiet "$service" || wrong "the service runs without its program"
test -e /etc/provost/provostd.toml || wrong "a removal takes the configuration"
dpkg --purge provost >/tmp/dpkg 2>&1 || wrong "$(cat /tmp/dpkg)"
left=$(find /etc/provost /var/lib/provost /var/cache/provost /var/log/provost /usr/bin/provost* /run/provost 2>/dev/null || true)
[ -z "$left" ] || wrong "a purge leaves $left"
step "done"
