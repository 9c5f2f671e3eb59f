"""`make test-compose`, first part: the commands of team-deployment.md, up to a first run's results.

They are taken from the page: start, TLS, backup and restore; the first *Trigger* takes the form's defaults.
Only what this machine needs is added to `.env`: free ports, a project's name, and images in place of those
that no registry here has.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deployment import DAG, PORT, ROOT, Deployment, check, say, wait_for
from engine import NoEngineError, engine

from steptime.errors import SystemFailure, UserError
from steptime.local_services import is_free

PAGE = (ROOT / "docs/reference/team-deployment.md").read_text(encoding="utf-8")
TLS_PORT = next(port for port in range(18443, 18543) if is_free(port))
_HEALTHY_WITHIN_S = 1800
_FIRST_RUN_WITHIN_S = 3600
"""The first run also installs the trainer's packages."""


def commands(heading, block=0):
    """Return a block of commands below a heading of the page, without its indentation."""
    section = re.split(r"\n##+ ", PAGE.partition(f" {heading}\n")[2])[0]
    indent, text = re.findall(r"^( *)```bash\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)[block]
    return re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)


class PageDeployment(Deployment):
    """A copy of the checkout in which a person follows the page."""

    def bash(self, script):
        """Run a script in the copy; return what it prints. Raises SystemFailure."""
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemFailure(f"{script}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout

    def make_env_file(self):
        """Make `.env` by the page's command, and add what this machine needs."""
        images = {name: value for name, value in self.values.items() if name.endswith("_IMAGE")}
        self.bash(commands("Start it", 0))
        file = self.folder / ".env"
        here = {
            **images,
            "AIRFLOW_PORT": str(PORT),
            "TLS_ADDRESS": "127.0.0.1",
            "TLS_PORT": str(TLS_PORT),
            "COMPOSE_PROJECT_NAME": "steptime-first-run",
        }
        text = file.read_text().replace(
            "docker-compose.mini-slurm.yaml", "docker-compose.mini-slurm.yaml:docker-compose.override.yaml"
        )
        file.write_text(text + "".join(f"{name}={value}\n" for name, value in here.items()))
        self.values = dict(line.split("=", 1) for line in file.read_text().splitlines())

    def wait_until_all_healthy(self):
        """Wait until every container runs, and those with a health check are healthy."""

        def healthy():
            return all(
                container["State"] == "running" and container["Health"] in ("", "healthy")
                for container in self.containers()
            )

        try:
            wait_for("every service is healthy", healthy, _HEALTHY_WITHIN_S)
        except SystemFailure:
            print(self.compose("ps", "--all"), self.compose("logs", "--tail=20"))
            raise


def first_run(deployment):
    """Follow the numbered steps; the form's defaults give a result."""
    deployment.make_env_file()
    deployment.bash(commands("Start it", 1))
    deployment.wait_until_all_healthy()
    say(f"built and started by the page: {sorted(one['Service'] for one in deployment.containers())}")
    airflow = ("exec", "-T", "scheduler", "airflow", "dags")
    # It appears once its file is read; before that Airflow unpauses nothing, and says so with exit code 0.
    wait_for("the DAG is there", lambda: DAG in deployment.compose(*airflow, "list"), _HEALTHY_WITHIN_S)
    deployment.compose(*airflow, "unpause", "--yes", DAG)
    with deployment.airflow() as client:
        run = client.trigger(DAG, {}, patience_s=300)
    deployment.ended(run, _FIRST_RUN_WITHIN_S)
    check("results", len(deployment.results()), 2)
    say(f"the first Trigger with the form's defaults ended with the results {deployment.results()}")


def serve_tls(deployment):
    """Follow the section on TLS; pages and their links are those of the https address."""
    block = commands("Pages for others, by TLS").replace("https://localhost", f"https://localhost:{TLS_PORT}")
    start, ask = block[: block.index("curl ")], block[block.index("curl ") :]
    deployment.bash(start)
    deployment.wait_until_all_healthy()
    health = json.loads(deployment.bash(ask))
    check("the scheduler by TLS", health["scheduler"]["status"], "healthy")
    where = f"https://localhost:{TLS_PORT}"
    curl = f"curl --silent --show-error --cacert docker/tls/server.crt --output /dev/null {where}/auth/login/"
    check("the login page by TLS", deployment.bash(f"{curl} --write-out '%{{http_code}}'"), "200")
    # A redirect to http would leave a browser without an answer.
    redirect = deployment.bash(f"{curl[: -len('/')]} --write-out '%{{http_code}} %{{redirect_url}}'").split()
    check("the redirect", redirect[0][0] != "3" or redirect[1].startswith(where), True)
    check("results", len(deployment.results()), 2)
    say("the pages are served by TLS")


def back_up_and_restore(deployment):
    """Back up, lose the results, restore; the results are there again."""
    deployment.bash(commands("Look after it"))
    before = deployment.results()
    sql = "psql --username=steptime --command='DELETE FROM runs' steptime"
    deployment.bash(f"docker compose exec -T store-db {sql}")
    check("results", deployment.results(), [])
    today = deployment.bash("date +%F").strip()
    deployment.bash(re.sub(r"\d{4}-\d\d-\d\d", today, commands("Restore")))
    deployment.wait_until_all_healthy()
    check("results", deployment.results(), before)
    say("backed up and restored by the page")


def main():
    """Run the scenario; return 0 if all of it succeeded, or if no engine can be started."""
    try:
        with engine() as environment, tempfile.TemporaryDirectory(prefix="steptime-compose-") as folder:
            Path(folder).chmod(0o755)
            deployment = PageDeployment(Path(folder), environment)
            try:
                first_run(deployment)
                serve_tls(deployment)
                back_up_and_restore(deployment)
            finally:
                deployment.compose("down", "--volumes", "--timeout=10")
    except NoEngineError as error:
        print(f"SKIPPED, NOTHING WAS TESTED: {error}", file=sys.stderr)
        return 0
    except (SystemFailure, UserError) as error:
        say(f"FAILED: {error}")
        return 1
    say("everything succeeded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
