"""A travel agency: one call asks several services, and their replies come back as one unit.

python examples/fan_out/trip.py

The services know nothing of units: each copies `uow-request-id` of a request into `uow-correlation-id` of its reply. Hotels hear of requests whose
call was over before they replied.
"""

from __future__ import annotations

import argparse
import json
import threading

from confluent_kafka.admin import AdminClient, NewTopic

import uow

APPLICATION = "travel-agency"
DESTINATION = "travel"
REPLIES = "travel.replies"
SERVICES = ("travel.hotels", "travel.flights")
CANCELLED = "travel.hotels.cancelled"


def ask(connection: uow.Connection, city: str, destination: str = DESTINATION, prefix: str = "") -> uow.FanOut:
    """Asks for a hotel and for two flights; returns once the requests are committed."""
    hotels, flights = (prefix + service for service in SERVICES)
    requests = [
        uow.Request(hotels, {"city": city}, folder="hotel", reply_to=prefix + REPLIES, notice_topic=prefix + CANCELLED),
        uow.Request(flights, {"to": city}, folder="flight", reply_to=prefix + REPLIES),
        uow.Request(flights, {"from": city}, folder="flight", reply_to=prefix + REPLIES),
    ]
    return connection.fan_out(destination, "trip", requests, awaits=True)


def answer(connection: uow.Connection, request: uow.Message) -> None:
    """A service: the reply and the position of the request are one transaction."""
    offer = {"offer for": json.loads(request.value or b"null")}
    correlation = {"uow-correlation-id": request.header("uow-request-id")}
    connection.forward(request, request.header("uow-reply-to"), value=offer, headers=correlation)


def serve(bootstrap: str, topic: str, stop: threading.Event) -> None:
    """Answers all requests but those for Atlantis."""
    with uow.connect(bootstrap) as connection, connection.messages(topic, group=topic) as requests:
        while not stop.is_set():
            request = requests.receive(0.5)
            if request is not None and b'"city":"Atlantis"' not in (request.value or b""):
                answer(connection, request)


def hear(bootstrap: str, stop: threading.Event) -> None:
    """The hotels' ear for requests that nobody waits for any more."""
    with uow.connect(bootstrap) as connection, connection.messages(CANCELLED, group=CANCELLED) as notices:
        while (notice := notices.receive(0.5)) is not None or not stop.is_set():
            if notice is not None and notice.cancels is not None:
                print(f"hotels: {notice.cancels} is needed no longer")
                notice.acknowledge()


def show(trip: uow.ReceivedUnit | None) -> None:
    """Prints a trip."""
    if trip is None:
        print("no trip in time")
        return
    offers = {folder: [each.json() for each in replies] for folder, replies in trip.folders.items()}
    print(f"{trip.outcome}: {json.dumps(offers)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask several services for a trip.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    args = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": args.bootstrap})
    made = admin.create_topics([NewTopic(name, 1, 1) for name in (*SERVICES, CANCELLED)])
    for each in made.values():
        each.exception()
    stop = threading.Event()
    programs = [threading.Thread(target=serve, args=(args.bootstrap, topic, stop)) for topic in SERVICES]
    programs.append(threading.Thread(target=hear, args=(args.bootstrap, stop)))
    for each_program in programs:
        each_program.start()
    with uow.connect(args.bootstrap, application=APPLICATION) as connection:
        for call in [ask(connection, city) for city in ("Rome", "Atlantis")]:
            show(call.unit(30))
            call.close()
    stop.set()


if __name__ == "__main__":
    main()
