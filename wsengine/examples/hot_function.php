<?php
/**
 * Tells slackwater-wsengine when this request enters and leaves the function that takes most of its time.
 *
 *     require 'hot_function.php';
 *     $page = slackwater_hot('render', fn () => render($query));
 *
 * The socket is there only while the policy `hurry-up` runs. Without it the function is called and nothing else is done.
 * Nothing here waits: a line that cannot be sent at once is dropped.
 */

const SLACKWATER_SOCKET = '/run/slackwater-events/socket';

function slackwater_hot(string $name, callable $function, string $socket = SLACKWATER_SOCKET): mixed
{
    slackwater_say("begin $name", $socket);
    try {
        return $function();
    } finally {
        slackwater_say("end $name", $socket);
    }
}

/** One connection for each request; its end takes the process out of all of its functions. */
function slackwater_say(string $line, string $socket): void
{
    static $connection = null;
    if ($connection === null && file_exists($socket)) {
        $connection = @stream_socket_client("unix://$socket", $code, $message, 0.01) ?: null;
        if ($connection !== null) {
            stream_set_blocking($connection, false);
        }
    }
    if ($connection !== null && @fwrite($connection, "$line\n") === false) {
        $connection = null;
    }
}
