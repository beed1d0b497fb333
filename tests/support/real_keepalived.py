"""A real keepalived in the IP_VS guest, for the tests."""

from __future__ import annotations

from slackwater.lbengine.backends.keepalived.keepalived import Keepalived, owner
from tests.support.ipvs_guest import IpvsGuest
from tests.support.real_haproxy import until

WEB = "-t 10.9.0.1:81"
RS1, RS2, RS3 = "10.9.1.2:80", "10.9.2.2:80", "10.9.3.2:80"
FOLDER = "/run/weights"
WITHIN_S = 60.0


def real_server(number: int, weight: int = 20, more: str = "", check: str | None = None) -> str:
    check = f"FILE_CHECK {{\n track_file rs{number}\n }}" if check is None else check
    return f" real_server 10.9.{number}.2 80 {{\n weight {weight}\n {more}\n {check}\n }}\n"


def configuration(*servers: str, service: str = "10.9.0.1 81", more: str = "") -> str:
    files = "".join(f"track_file rs{n} {{\n file {FOLDER}/rs{n}\n}}\n" for n in (1, 2, 3))
    inside = "".join(servers or (real_server(n) for n in (1, 2)))
    head = f"virtual_server {service} {{\n lb_algo wrr\n lb_kind NAT\n protocol TCP\n delay_loop 1\n {more}\n"
    return f"{files}{head}{inside}}}\n"


class RunningKeepalived:
    """keepalived in the guest, its checkers only, with a configuration that tests may change."""

    def __init__(self, guest: IpvsGuest) -> None:
        self.guest = guest
        self.path = "/run/keepalived.conf"

    def start(self, text: str) -> Keepalived:
        self.guest.replace(self.path, text)
        self.guest.ok(f"keepalived --check -n -l -D -f {self.path} >/run/keepalived.log 2>&1 & disown")
        # One whose port is checked besides may be down.
        sure = text.count("real_server ") - text.count("TCP_CHECK")
        until(lambda: owner(self.guest) is not None and len(self.table()) >= sure, "keepalived has added its servers")
        return Keepalived(WEB, self.guest.run, self.guest, WITHIN_S)

    def log(self) -> str:
        return self.guest.sh("cat /run/keepalived.log")[1]

    def table(self) -> list[str]:
        return [line for line in self.guest.ok("ipvsadm -Sn").splitlines() if line.startswith("-a")]

    def reload(self, text: str | None = None) -> None:
        if text is not None:
            self.guest.replace(self.path, text)
        before = self.log().count("Reload complete")
        self.guest.ok("kill -HUP $(cat /run/keepalived.pid)")
        until(lambda: self.log().count("Reload complete") > before, "keepalived has reloaded")

    def stop(self) -> None:
        if self.guest.sh("kill $(cat /run/keepalived.pid)")[0] == 0:
            until(lambda: self.guest.sh("test -e /run/keepalived.pid")[0] != 0, "keepalived has ended")
