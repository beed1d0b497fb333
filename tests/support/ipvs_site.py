"""A small site inside the IP_VS guest: a client, the director (the guest itself) and three web servers, each in a
network namespace of the guest. The director masquerades; the servers' way back leads through it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from slackwater.lbengine.backends.ipvs.ipvs import Lvs
from tests.support.ipvs_guest import GUEST, PYTHON, IpvsGuest

TRAFFIC = f"{PYTHON} -ISE {GUEST / 'traffic.py'}"
SERVERS = ("rs1", "rs2", "rs3")
FIRST_SOURCE, LAST_SOURCE = 10, 109


class IpvsSite:
    """Real servers `10.9.N.2:80` and `[fd09:N::2]:80` behind virtual services on 10.9.0.1 and fd09::1."""

    def __init__(self, guest: IpvsGuest) -> None:
        self.guest = guest
        self._port = 1000
        aliases = "".join(f"addr add 10.9.0.{last}/24 dev e\\n" for last in range(FIRST_SOURCE, LAST_SOURCE + 1))
        self._host("client", "10.9.0", "fd09:", aliases)
        for number, name in enumerate(SERVERS, start=1):
            self._host(name, f"10.9.{number}", f"fd09:{number}:", "")
            guest.ok(f"setsid ip netns exec {name} {TRAFFIC} serve {name} >/run/{name}.log 2>&1 & disown")
        guest.ok("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
        for number, name in enumerate(SERVERS, start=1):
            guest.ok(f'until [ "$({TRAFFIC} connect 10.9.{number}.2 80 1)" = \'["{name}"]\' ]; do sleep 0.1; done')

    def _host(self, name: str, network: str, network6: str, more: str) -> None:
        """A namespace with one interface to the director: .2 and ::2, the director has .1 and ::1."""
        director = (
            f"link add {name} type veth peer name e netns {name}\\naddr add {network}.1/24 dev {name}\\n"
            f"addr add {network6}:1/64 dev {name} nodad\\nlink set {name} up\\n"
        )
        inside = (
            f"link set lo up\\naddr add {network}.2/24 dev e\\n{more}addr add {network6}:2/64 dev e nodad\\n"
            f"link set e up\\nroute add default via {network}.1\\nroute add ::/0 via {network6}:1\\n"
        )
        self.guest.ok(
            f"ip netns add {name}; printf '{director}' | ip -batch - && printf '{inside}' | ip -n {name} -b -"
        )

    def service(
        self,
        scheduler: str,
        weights: Sequence[int],
        *,
        flags: str = "",
        more: str = "",
        ipv6: bool = False,
        port: int = 80,
    ) -> Lvs:
        """Makes a service with the servers rs1, rs2, ... at these weights; the driven to it.

        On a port of its own: a server that is added again with the same ports inherits its old connections' counts.
        """
        self._port += 1
        name = f"-t [fd09::1]:{self._port}" if ipv6 else f"-t 10.9.0.1:{self._port}"
        lines = [f"-A {name} -s {scheduler} {f'-b {flags}' if flags else ''} {more}"]
        lines += [
            f"-a {name} -r {self.address(n, ipv6, port)} -m -w {weight}" for n, weight in enumerate(weights, start=1)
        ]
        done = self.guest.run(["ipvsadm", "-R"], "".join(f"{line}\n" for line in lines))
        assert not done.err, done.err
        return Lvs(name, self.guest.run)

    @staticmethod
    def address(number: int, ipv6: bool = False, port: int = 80) -> str:
        return f"[fd09:{number}::2]:{port}" if ipv6 else f"10.9.{number}.2:{port}"

    def connect(
        self,
        lvs: Lvs,
        count: int,
        *,
        hold: bool = False,
        stop: bool = False,
        all_sources: bool = False,
        http: bool = False,
    ) -> list[str | None]:
        """Opens connections one after the other from the client and returns who answered each; None: nobody.

        `hold`: all are closed at the end only. `stop`: no more after the first that nobody answered. `all_sources`:
        they take turns with 100 addresses of the client. `http`: with a request of HTTP on each.
        """
        host, _, port = lvs.service.address.rpartition(":")
        named = {"hold": hold, "stop": stop, "http": http}
        words = " ".join([host.strip("[]"), port, str(count), *(word for word, wanted in named.items() if wanted)])
        words += f" from {FIRST_SOURCE} {LAST_SOURCE}" if all_sources else ""
        answers = json.loads(self.guest.ok(f"ip netns exec client {TRAFFIC} connect {words}"))
        assert isinstance(answers, list)
        return answers
