"""Stale metrics: what a scrape shows, plus the gateway's own ledger since then (docs/model.md, section 3)."""

from __future__ import annotations

from pdenv.sim.events import SCRAPE, SCRAPE_SEEN, schedule, single_slot
from pdenv.sim.layout import kernel
from pdenv.sim.state import header, ledger, ledger_at_scrape, load, port, scraped, seen


@kernel
def copy_load(target, source):
    target.requests = source.requests
    target.tokens = source.tokens
    target.kv_bytes = source.kv_bytes
    target.receiving = source.receiving
    target.work_s = source.work_s


@kernel
def take_scrape(S, t):
    """Read every instance's load; schedulers see it after the scrape delay."""
    h = header(S)
    for i in range(h.n_prefill + h.n_decode + h.n_colocated):
        copy_load(scraped(S, i), load(S, i))
        copy_load(ledger_at_scrape(S, i), ledger(S, i))
    h.scrapes += 1
    schedule(S, single_slot(S, SCRAPE), (h.scrapes + 1) * h.scrape_interval_s)
    if h.scrape_delay_s > 0.0:
        schedule(S, single_slot(S, SCRAPE_SEEN), t + h.scrape_delay_s)
    else:
        show_scrape(S)


@kernel
def show_scrape(S):
    """From now on schedulers see the last scrape."""
    h = header(S)
    for i in range(h.n_prefill + h.n_decode + h.n_colocated):
        view = seen(S, i)
        old = scraped(S, i)
        now = ledger(S, i)
        then = ledger_at_scrape(S, i)
        view.requests = old.requests + (now.requests - then.requests)
        view.tokens = old.tokens + (now.tokens - then.tokens)
        view.kv_bytes = old.kv_bytes + (now.kv_bytes - then.kv_bytes)
        view.work_s = old.work_s + (now.work_s - then.work_s)
        view.receiving = old.receiving
    for k in range(h.n_ports):
        port(S, k).seen_flows = port(S, k).flows
