-- name: category_head
SELECT reservation.category_head(%s)
