-- name: channel
SELECT reservation.notice_channel(%s)

-- name: expect
SELECT reservation.expect_notice(%s)

-- name: leave
SELECT reservation.expect_no_notice(%s)
