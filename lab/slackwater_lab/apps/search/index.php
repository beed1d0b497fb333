<?php
/* A search: each keyword costs some milliseconds of CPU in one function, which slackwater-wsengine is told of. */
declare(strict_types=1);

require __DIR__ . '/hot_function.php';

$socket = require __DIR__ . '/socket.php';
$keywords = max(1, min(64, (int) ($_GET['keywords'] ?? 1)));
$digest = slackwater_hot('search', function () use ($keywords): string {
    $digest = '';
    for ($round = 0; $round < 100000 * $keywords; $round++) {
        $digest = md5($digest);
    }
    return $digest;
}, $socket);
echo '<!doctype html><html lang="en"><head><title>Search</title></head><body>', $digest, "</body></html>\n";
