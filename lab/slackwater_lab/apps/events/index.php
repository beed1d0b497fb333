<?php
/* A page of an events calendar: picks a month's events, ranks them for a visitor and renders them as HTML.
 * The work is the same for each request of a month, about a millisecond of CPU, with no input but the query. */
declare(strict_types=1);

if (is_file(__DIR__ . '/broken')) { // a deploy that failed, as the lab plays it
    http_response_code(500);
    exit;
}

$events = require __DIR__ . '/data.php';
$month = max(1, min(12, (int) ($_GET['month'] ?? 1)));
$visitor = crc32('visitor ' . $month);

$chosen = [];
foreach ($events as $event) {
    if ($event['month'] !== $month) {
        continue;
    }
    $common = count(array_intersect($event['tags'], [$visitor % 16, $visitor % 11, $visitor % 7]));
    $distance = hypot($event['x'] - $visitor % 100, $event['y'] - intdiv($visitor, 100) % 100);
    $event['score'] = 10 * $common - $distance / 10 + strlen($event['title']) / 50;
    $event['digest'] = substr(hash('sha256', $event['title'] . $event['text']), 0, 12);
    $chosen[] = $event;
}
usort($chosen, fn (array $a, array $b): int => [$b['score'], $a['id']] <=> [$a['score'], $b['id']]);

$words = [];
foreach ($chosen as $event) {
    foreach (explode(' ', $event['text']) as $word) {
        $words[$word] = ($words[$word] ?? 0) + 1;
    }
}
arsort($words);

header('Content-Type: text/html; charset=utf-8');
echo '<!doctype html><html lang="en"><head><title>Events</title></head><body><h1>Events of month ', $month, "</h1>\n";
echo '<p>', htmlspecialchars(implode(' ', array_slice(array_keys($words), 0, 30))), "</p>\n<ol>\n";
foreach (array_slice($chosen, 0, 60) as $event) {
    printf(
        "<li id=\"e%d\"><h2>%s</h2><p>%s</p><small>%s, %d going, %s</small></li>\n",
        $event['id'],
        htmlspecialchars($event['title']),
        htmlspecialchars(ucfirst($event['text'])),
        date('D j M Y H:i', $event['time']),
        $event['going'],
        $event['digest']
    );
}
echo "</ol></body></html>\n";
